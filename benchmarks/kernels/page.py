"""docs/kernels.md and the printed table, of measured rows."""

import os
import platform
from pathlib import Path

import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kernels.md"
CPU = Path("/proc/cpuinfo")
BEGIN, END = "<!-- written by ./dev bench kernels -->", "<!-- end -->"
HEAD = (
    "| kernel | half | dtype | threads | unit | limit | ours | of limit | PyTorch | of limit | faster |",
    "|---|---|---|--:|---|--:|--:|--:|--:|--:|--:|",
)
CLOCKS = {
    "wall": "Times are by the clock on the wall.",
    "processor": "Times are of the processors, divided by the threads, since others used the machine: they say nothing "
    "about how evenly threads share the work.",
}


def cpu():
    lines = CPU.read_text().splitlines() if CPU.exists() else []
    found = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    if "model name" not in found:
        return platform.processor() or platform.machine()
    family = f"family {found.get('cpu family', '?').strip()}, model {found.get('model', '?').strip()}"
    return f"{found['model name'].strip()} ({family}), {os.cpu_count()} cores"


def table(rows, head=True):
    lines = [*HEAD] if head else []
    for row in rows:
        limit, ratios = row["peak"], row["ratios"]
        sides = []
        for side in ("ours", "pytorch"):
            best, median = row[side]["best"], row[side]["median"]
            sides.append(f"{best:.0f} ({median:.0f}) | " + (f"{best / limit:.2f}" if limit else ""))
        faster = f"{ratios['best']:.2f} ({ratios['q1']:.2f}-{ratios['q3']:.2f})"
        lines.append(
            f"| {row['name']} | {row['half']} | {row['dtype']} | {row['threads']} | {row['unit']} | {limit:.0f} "
            f"| {sides[0]} | {sides[1]} | {faster} |"
        )
    return lines


def sixteen_bit_attention(rows):
    """How many times as fast attention of 16 bits is as that of f32, ours."""
    ours = {
        (row["name"], row["half"], row["threads"], row["dtype"]): row["ours"]["best"]
        for row in rows
        if row["family"] == "attention"
    }
    for (name, half, threads, dtype), rate in ours.items():
        if dtype != "f32" and (f32 := ours.get((name, half, threads, "f32"))):
            yield f"| {name} | {half} | {dtype} | {threads} | {rate / f32:.2f} |"


def figures(found):
    rows = found["rows"]
    conditions = f"{cpu()}; PyTorch {torch.__version__.split('+')[0]}; {found['day']}; {found['rounds']} rounds."
    others = f"Other work had {found['others']:.0%} of the processors meanwhile."
    lines = [BEGIN, " ".join((conditions, CLOCKS[found["clock"]], others)), ""]
    for family in dict.fromkeys(row["family"] for row in rows):
        lines += [f"## {family}", "", *table([row for row in rows if row["family"] == family]), ""]
        if family == "attention" and (ratios := list(sixteen_bit_attention(rows))):
            lines += ["Ours of 16 bits beside ours of f32:", ""]
            lines += ["| kernel | half | dtype | threads | times as fast |", "|---|---|---|--:|--:|", *ratios, ""]
    return "\n".join([*lines, END])


def write(found):
    """Between the markers."""
    text = PAGE.read_text()
    begin, end = text.index(BEGIN), text.index(END)
    PAGE.write_text(text[:begin] + figures(found) + text[end + len(END) :])
