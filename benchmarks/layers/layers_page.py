"""docs/layers.md and the printed lines, of measured rows."""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "kernels"))
from page import cpu  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs" / "layers.md"
SLOW = 0.8  # of eager's speed: marked

INTRODUCTION = """\
# Layers

Single layers and functions in f32, forward and backward, beside eager, written by `./dev bench layers --write`: what a
model has besides the products of `./dev bench kernels`. Under a millisecond it is mostly the call that counts, some
0.2 ms more of ours. {machine}; PyTorch {version}; {day}. The fastest of some steps, in which the two take turns.
{slow} of {all} reach less than {limit} of eager's speed.
"""
HEAD = """
## {family}

| layer | eager ms | ours ms | speed | kernels that took most of it |
|---|--:|--:|--:|---|
"""


def speed(row):
    return row["eager"] / row["ours"]


def where(row):
    return f"in PyTorch: {row['pytorch']}" if row["pytorch"] else ", ".join(row["kernels"])


def line(row):
    mark = "  <<<" if speed(row) < SLOW else ""
    times = f"eager {row['eager']:8.2f} ms  ours {row['ours']:8.2f} ms  {speed(row):5.2f}x"
    return f"{row['name']:20} {times}{mark}  {where(row)}"


def write(rows, day):
    slow = sum(speed(row) < SLOW for row in rows)
    machine, version = cpu(), torch.__version__.split("+")[0]
    text = INTRODUCTION.format(machine=machine, version=version, day=day, slow=slow, all=len(rows), limit=SLOW)
    for family in dict.fromkeys(row["family"] for row in rows):
        text += HEAD.format(family=family)
        for row in (row for row in rows if row["family"] == family):
            shown = f"**{speed(row):.2f}**" if speed(row) < SLOW else f"{speed(row):.2f}"
            text += f"| {row['name']} | {row['eager']:.2f} | {row['ours']:.2f} | {shown} | {where(row)} |\n"
    PAGE.write_text(text)
