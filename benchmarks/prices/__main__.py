"""Predicted against measured step times: ./dev bench prices [--models gpt2,bert] [--rounds 2] [--classes] [--json FILE]

For each model of ./dev bench training the step as it is and with ORTMODULE_MEMORY_OPT_LEVEL=1 (which computes twice
what is inside a layer), taking turns, each time in a fresh process. Predicted by the prices that are shipped and by
those of a calibration that runs first. `error` is predicted / measured - 1. What level 1 computes a second time is told
twice: `again` sums up its steps in the trace, `extra` is the difference of two step times, which any drift of the
machine blurs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))
from models import NAMES  # noqa: E402

MEASURE = Path(__file__).with_name("measure.py")
LEVELS = (0, 1)
KINDS = ("shipped", "calibrated")


def arguments():
    parser = argparse.ArgumentParser(prog="./dev bench prices", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(NAMES), help=f"of {', '.join(NAMES)} (all)")
    parser.add_argument("--steps", type=int, default=5, help="timed steps, and as many traced ones, a process (5)")
    parser.add_argument("--rounds", type=int, default=2, help="processes for each model and level (2)")
    parser.add_argument("--classes", action="store_true", help="also tell each class of kernels, over all models")
    parser.add_argument("--json", metavar="FILE", help="write what was measured there")
    parsed = parser.parse_args()
    parsed.models = parsed.models.split(",")
    if unknown := [name for name in parsed.models if name not in NAMES]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(NAMES)}")
    return parsed


def run(command, environment=None):
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stderr}{' '.join(map(str, command))} failed")
    return done.stdout


def measure(model, level, steps, calibrated):
    environment = {key: text for key, text in os.environ.items() if not key.startswith("ORTMODULE_MEMORY_OPT_")}
    environment["ORTMODULE_MEMORY_OPT_LEVEL"] = str(level)
    command = [sys.executable, MEASURE, "--model", model, "--steps", str(steps), "--prices", calibrated]
    lines = [line for line in run(command, environment).splitlines() if line.startswith("RESULT ")]
    return json.loads(lines[-1].removeprefix("RESULT "))


def measure_in_rounds(options, calibrated):
    """{(model, level): [result, …]}, a result a round."""
    found = {(model, level): [] for model in options.models for level in LEVELS}
    for number in range(options.rounds):
        for (model, level), results in found.items():
            results.append(measure(model, level, options.steps, calibrated))
            middle = statistics.median(results[-1]["step_times_ms"])
            print(f"round {number + 1}/{options.rounds}  {model} level {level}: {middle:.0f} ms", file=sys.stderr)
    return found


def step_ms(results):
    return statistics.median(ms for result in results for ms in result["step_times_ms"])


def predicted_ms(results, kind):
    return sum(row[kind] for row in results[0]["classes"].values())


def compared(measured, predictions):
    return "".join(f"{each:10.1f} {each / measured - 1:+7.1%}" for each in predictions)


def print_again(results):
    measured = statistics.median(result["again"]["measured"] for result in results)
    if measured > 0:
        predictions = compared(measured, [results[0]["again"][kind] for kind in KINDS])
        print(f"{'':<10}{'again':>5}{measured:13.1f}{'':>16}{predictions}")


def print_models(found, models):
    titles = "".join(f"{kind:>10}{'error':>8}" for kind in KINDS)
    print(f"\n{'model':<10}{'level':>5}{'measured ms':>13}{'quartiles':>16}{titles}")
    for model in models:
        for level in LEVELS:
            results = found[model, level]
            times = [ms for result in results for ms in result["step_times_ms"]]
            low, middle, high = statistics.quantiles(times, n=4)
            spread = f"{low:.0f} to {high:.0f}"
            predictions = compared(middle, [predicted_ms(results, kind) for kind in KINDS])
            print(f"{model:<10}{level:>5}{middle:13.1f}{spread:>16}{predictions}")
        plain, level1 = found[model, 0], found[model, 1]
        print_again(level1)
        extra = step_ms(level1) - step_ms(plain)
        predictions = [predicted_ms(level1, kind) - predicted_ms(plain, kind) for kind in KINDS]
        share = extra / step_ms(plain)
        if max(predictions) > 0:
            print(f"{'':<10}{'extra':>5}{extra:13.1f}{f'{share:.1%} of a step':>16}{compared(extra, predictions)}")


def print_classes(found):
    """Over all models and levels."""
    rows = {}
    for results in found.values():
        for name, row in results[0]["classes"].items():
            times = [result["classes"][name]["measured"] for result in results]
            mine = rows.setdefault(name, {"steps": 0, "measured": 0.0, **dict.fromkeys(KINDS, 0.0)})
            mine["steps"] += row["steps"]
            mine["measured"] += statistics.median(times)
            for kind in KINDS:
                mine[kind] += row[kind]
    titles = "".join(f"{kind:>10}{'error':>8}" for kind in KINDS)
    print(f"\n{'class of kernels':<24}{'steps':>6}{'measured ms':>13}{titles}")
    for name, row in sorted(rows.items(), key=lambda item: -item[1]["measured"]):
        print(f"{name:<24}{row['steps']:>6}{row['measured']:13.2f}"
              + compared(row["measured"], [row[kind] for kind in KINDS]))  # fmt: skip


def main():
    options = arguments()
    calibrated = run([sys.executable, "-m", "lowtide", "calibrate", "--print"])
    found = measure_in_rounds(options, calibrated)
    if options.json:
        rows = [{"model": model, "level": level, "rounds": results} for (model, level), results in found.items()]
        Path(options.json).write_text(json.dumps({"prices": calibrated, "rows": rows}, indent=1) + "\n")
    print_models(found, options.models)
    if options.classes:
        print_classes(found)


if __name__ == "__main__":
    main()
