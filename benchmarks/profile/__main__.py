"""Where the time of a training step goes: ./dev bench profile gpt2 [--mode autocast:loss] [--page gpt2.html]

Traces steps of a model of ./dev bench training and lays each step of the plan beside what it computes and moves
(src/ops/cost.cpp): milliseconds, GFLOP/s and GB/s by op, by module and by layer, what products alone take, and the
casts. The page has the same and every step; it needs nothing from elsewhere.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))
from models import FURTHER, NAMES  # noqa: E402
from modes import is_mode, split_precision  # noqa: E402

MODES = ("lowtide", "loss")


def arguments():
    parser = argparse.ArgumentParser(prog="./dev bench profile", description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=[*NAMES, *FURTHER], metavar="MODEL", help=", ".join([*NAMES, *FURTHER]))
    parser.add_argument("--mode", default="loss", help="loss or lowtide, also as bf16:loss or autocast:loss (loss)")
    parser.add_argument("--steps", type=int, default=5, help="traced steps; of each step of the plan the median (5)")
    parser.add_argument("--rows", type=int, default=24, help="printed rows of a table (24)")
    parser.add_argument("--page", metavar="FILE", help="write an HTML page there")
    parser.add_argument("--json", metavar="FILE", help="write the rows there, one for each step of the plan")
    parsed = parser.parse_args()
    if not is_mode(parsed.mode) or split_precision(parsed.mode)[1] not in MODES:
        parser.error(f"not a mode that has a plan: {parsed.mode}; there are {', '.join(MODES)}")
    return parsed


def main():
    options = arguments()
    from profile_page import page
    from profile_tables import tables, text_of
    from traced_steps import measure  # PyTorch, after mistakes in the arguments

    profile = measure(options.model, options.mode, options.steps)
    shown = tables(profile)
    print(text_of(shown, options.rows))
    if options.page:
        title = f"A training step of {options.model}, {options.mode}"
        Path(options.page).write_text(page(title, shown), encoding="utf-8")
    if options.json:
        Path(options.json).write_text(json.dumps(profile, indent=1) + "\n")


if __name__ == "__main__":
    main()
