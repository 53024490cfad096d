"""Joins the statistics of two runs into one text a step, to be compared side by side.

python -m lowtide.utils.hooks.merge_activation_summary --pt_dir A --ort_dir B --output_dir C [--overwrite]

Writes C/merge_pt/step_<n>_.txt and C/merge_ort/step_<n>_.txt: both in the order in which the first run wrote, then what
only that run has. Files that a run lacks are listed on the terminal and, in their places, in the texts.
"""

import argparse
import shutil
import sys
from pathlib import Path

from lowtide.errors import InvalidArgument

from .summary_file import Run


def merge_activation_summary(pt_dir, ort_dir, output_dir, overwrite=False):
    """Returns the files that a run lacks: (step, "pt_dir" or "ort_dir", file name). FileExistsError where output_dir is
    there and `overwrite` is false; InvalidArgument for a folder without steps."""
    runs = {"pt": Run(pt_dir), "ort": Run(ort_dir)}
    for name, run in runs.items():
        if not run.steps():
            raise InvalidArgument(f"{name}_dir {run.folder} has no step_<n>")
    output = Path(output_dir)
    if output.exists() and not overwrite:
        raise FileExistsError(f"{output} is there already; --overwrite replaces it")
    for name in runs:
        shutil.rmtree(output / f"merge_{name}", ignore_errors=True)
        (output / f"merge_{name}").mkdir(parents=True)
    missing = []
    for step in sorted({step for run in runs.values() for step in run.steps()}):
        orders = {name: run.order(step) if step in run.steps() else [] for name, run in runs.items()}
        order = list(dict.fromkeys([*orders["pt"], *orders["ort"]]))
        for name, run in runs.items():
            parts = []
            for file in order:
                if file in orders[name] and run.path(step, file).exists():
                    parts.append(run.path(step, file).read_text())
                else:
                    missing.append((step, f"{name}_dir", file))
                    parts.append(f"{file}: not in this run\n")
            (output / f"merge_{name}" / f"step_{step}_.txt").write_text("\n".join(parts))
    return missing


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m lowtide.utils.hooks.merge_activation_summary",
        description="Joins the statistics of two runs into one text a step, to be compared side by side.",
    )
    parser.add_argument("--pt_dir", required=True, help="output_dir of the baseline's StatisticsSubscriber")
    parser.add_argument("--ort_dir", required=True, help="output_dir of the wrapped model's StatisticsSubscriber")
    parser.add_argument("--output_dir", required=True, help="gets merge_pt/step_<n>_.txt and merge_ort/step_<n>_.txt")
    parser.add_argument("--overwrite", action="store_true", help="output_dir may be there already")
    options = parser.parse_args(arguments)
    try:
        missing = merge_activation_summary(options.pt_dir, options.ort_dir, options.output_dir, options.overwrite)
    except (InvalidArgument, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    for step, folder, file in missing:
        print(f"step {step}: {file} not in --{folder}")
    print(f"merged into {options.output_dir}" + (f"; {len(missing)} files are missing in one run" if missing else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
