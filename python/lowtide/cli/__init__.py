"""The `lowtide` command: what the engine would do with a model, and where two runs differ."""

import argparse
import importlib.util
import os
import sys

from lowtide import INSTALL_TORCH
from lowtide.errors import Error, InternalError


def main(arguments=None):
    """Exit code 0, 1 where a difference or a bug was looked for and found, or 2 for input that cannot be right (with
    the reason on standard error). A bug of lowtide's is raised."""
    if importlib.util.find_spec("torch") is None:
        print(f"lowtide: {INSTALL_TORCH}", file=sys.stderr)
        return 2
    from . import (  # PyTorch, which all of them need, comes with these
        analyze,
        bisect,
        calibrate,
        compare,
        plan,
        reproduce,
    )
    from .model import BadInput

    parser = argparse.ArgumentParser(prog="lowtide", description=__doc__.strip())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    analyze.add_to(commands)
    bisect.add_to(commands)
    calibrate.add_to(commands)
    compare.add_to(commands)
    plan.add_to(commands)
    reproduce.add_to(commands)
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except InternalError:
        raise
    except (BadInput, Error) as error:
        print(f"lowtide {options.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `lowtide analyze … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
