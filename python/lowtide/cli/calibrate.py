"""`lowtide calibrate`: measures what kernels take on this machine, for the planner to know what a step costs."""

import argparse
import sys

import torch  # noqa: F401  its threads and convolutions are measured

from lowtide._lowtide import calibrate, install_torch
from lowtide.store import prices

from .model import BadInput

_EPILOG = """The planner weighs bytes against milliseconds. Without this it has those of the machine that lowtide was
made on. It takes less than a minute, on as many threads as PyTorch has; nothing else should run meanwhile. Sessions of
later processes read the file where the processor and the threads are the same.
"""


def add_to(commands):
    parser = commands.add_parser(
        "calibrate",
        help="measure what kernels take on this machine",
        description=__doc__.strip(),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--print", action="store_true", help="write the prices to standard output, and no file")
    parser.set_defaults(run=run)


def run(options):
    install_torch()
    text = calibrate(_tell)
    print(file=sys.stderr)
    if options.print:
        print(text, end="")
        return 0
    try:
        prices.write_prices(text)
    except OSError as error:
        raise BadInput(f"the prices cannot be written to {prices.path()}: {error.strerror}") from error
    print(f"what kernels take on this machine is in {prices.path()}")
    return 0


def _tell(done, all):
    print(f"\rmeasuring graph {done + 1} of {all}", end="", file=sys.stderr, flush=True)
