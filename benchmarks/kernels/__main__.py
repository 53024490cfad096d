"""Kernels beside PyTorch's and the machine's limits: ./dev bench kernels [--families products] [--write]

Each thread count gets a process of its own (measure.py). --clock processor counts the time that processors worked: for
machines that others use too; it says nothing about how well threads share the work.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from cases import FAMILIES
from loops import CLOCKS
from page import PAGE, table, write

MEASURE = Path(__file__).with_name("measure.py")


def arguments():
    parser = argparse.ArgumentParser(prog="./dev bench kernels", description=__doc__.splitlines()[0])
    parser.add_argument("--families", default=",".join(FAMILIES), help=f"of {', '.join(FAMILIES)} (all)")
    parser.add_argument("--names", default="", help="only kernels whose name has one of these parts in it")
    parser.add_argument("--dtypes", default="f32,bf16,f16", help="of f32, bf16, f16 (all)")
    parser.add_argument("--threads", default="1,2", help="thread counts (1,2)")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds of each kernel (7)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="what times are of (wall)")
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parser.add_argument("--write", action="store_true", help=f"also write {PAGE.name}")
    parsed = parser.parse_args()
    if unknown := [name for name in parsed.families.split(",") if name not in FAMILIES]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(FAMILIES)}")
    return parsed


def measured(options, threads):
    """Rows as measure.py prints them."""
    command = [sys.executable, MEASURE, "--threads", threads]
    for name in ("families", "names", "dtypes", "rounds", "clock"):
        command += [f"--{name}", str(getattr(options, name))]
    environment = dict(os.environ, OMP_WAIT_POLICY="PASSIVE")  # threads that spin would take a core from the loops
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    for line in child.stdout:
        row = json.loads(line)
        print(table([row], head=False)[0], file=sys.stderr)
        yield row
    if child.wait():
        sys.exit(f"{MEASURE} failed")


def busy_s():
    """(seconds that all processors together worked, those that they could), or zeros where Linux does not tell."""
    try:
        first = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    except FileNotFoundError:
        return 0.0, 0.0
    ticks = [int(each) / os.sysconf("SC_CLK_TCK") for each in first[:8]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def main():
    options = arguments()
    before, own = busy_s(), os.times()
    rows = [row for threads in options.threads.split(",") for row in measured(options, threads)]
    after, own_after = busy_s(), os.times()
    ours = sum(own_after[:4]) - sum(own[:4])
    others = (after[0] - before[0] - ours) / max(after[1] - before[1], 1e-9)
    found = {"rows": rows, "others": max(0.0, others), "clock": options.clock, "rounds": options.rounds,
             "day": time.strftime("%Y-%m-%d")}  # fmt: skip
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(table(rows)))
    if options.write:
        write(found)


if __name__ == "__main__":
    main()
