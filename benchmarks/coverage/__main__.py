"""Which of PyTorch's ops are lowered, on PyTorch's kernel, or refused: ./dev bench coverage [--limit 6] [--op NAME]

Runs PyTorch's own samples of float32 through the engine, forward and gradient, beside eager, and writes docs/ops.md.
Exits with 1 where a sample is wrong.
"""

import argparse
import multiprocessing
import os
import sys

import kinds
import page
import torch


def arguments():
    parser = argparse.ArgumentParser(prog="./dev bench coverage", description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=6, help="samples of each op (6)")
    parser.add_argument("--op", action="append", help="only this OpInfo; the page stays as it is")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (one per core)")
    return parser.parse_args()


def told(coverage):
    counts = ", ".join(f"{count} {place}" for place, count in sorted(coverage.counts.items()))
    lines = [f"{coverage.name}: {counts or 'no sample'}"]
    lines += [f"    refused: {reason} ({count})" for reason, count in sorted(coverage.reasons.items())]
    return "\n".join(lines + [f"    wrong: {line}" for line in coverage.wrong])


def main():
    options = arguments()
    names = [name for name in kinds.variants() if not options.op or name in options.op]
    coverages = []
    with multiprocessing.get_context("spawn").Pool(options.jobs, kinds.start) as pool:
        for coverage in pool.imap(kinds.covered, [(name, options.limit) for name in names]):
            print(told(coverage), flush=True)
            if coverage.total:
                coverages.append(coverage)
    if not options.op:
        page.write(coverages, torch.__version__.split("+")[0])
    wrong = [coverage.name for coverage in coverages if coverage.wrong]
    print(f"{len(coverages)} ops, wrong: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
