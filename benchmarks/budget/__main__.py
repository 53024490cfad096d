"""What a budget in bytes costs and saves: ./dev bench budget [MODEL ...] [--rounds N] [--check] [--lengths] [--write]

Per model, in one process under a counter of malloc and mmap and step by step in turns: PyTorch eager,
torch.utils.checkpoint per layer, the engine with all outputs, with the loss alone, and under budgets of that. --compile
measures torch.compile's activation_memory_budget, each point beside eager in a process of its own, half a minute or
more to compile. What is found is stored in benchmarks/budget/points.json, of which --write makes docs/budget.md.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TRAINING = HERE.parent / "training"
sys.path.insert(0, str(TRAINING))

from document import document  # noqa: E402
from memory_counter import counted_environment  # noqa: E402
from models import NAMES  # noqa: E402
from verdicts import faults_of_budgets, faults_of_lengths  # noqa: E402

POINTS = HERE / "points.json"
DOCUMENT = HERE.parents[1] / "docs" / "budget.md"
WAYS = ("eager", "checkpoint", "default", "loss", "budgets")
FRACTIONS = (0.9, 0.7, 0.5, 0.3, 0.1)
WITH_LENGTHS = ("llama", "gpt2", "bloom3")  # whose batches may be 1,024 long


def arguments():
    parser = argparse.ArgumentParser(prog="./dev bench budget", description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(NAMES)} (all)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way (3)")
    parser.add_argument("--steps", type=int, default=2, help="timed steps a turn (2)")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of {', '.join(WAYS)} (all)")
    parser.add_argument("--compile", nargs="?", const=",".join(map(str, FRACTIONS)), metavar="FRACTIONS",
                        help="instead: torch.compile at these budgets of activations")  # fmt: skip
    parser.add_argument("--check", action="store_true", help="instead: 40 budgets are kept, and change no bit")
    parser.add_argument("--lengths", action="store_true", help="instead: batches of 64 to 1,024 tokens, one budget")
    parser.add_argument("--shapes", action="store_true", help="instead: the time that sizes never seen take")
    parser.add_argument("--planned", action="store_true", help="instead: what plans need, no step is timed")
    parser.add_argument("--asked", action="store_true", help="instead: the time at a quarter of eager's peak")
    parser.add_argument("--stored", action="store_true", help="measure nothing: what is stored")
    parser.add_argument("--write", action="store_true", help=f"write docs/{DOCUMENT.name}")
    parsed = parser.parse_args()
    known = WITH_LENGTHS if parsed.lengths else NAMES
    parsed.models = parsed.models or list(known[:1] if parsed.lengths else known)
    parsed.ways = parsed.ways.split(",")
    for wanted, names in ((parsed.models, known), (parsed.ways, WAYS)):
        if unknown := [name for name in wanted if name not in names]:
            parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(names)}")
    return parsed


def run(script, **asked):
    """The result of a script of this folder in a fresh process, counted."""
    asking = ("ORTMODULE_MEMORY_OPT_", "LOWTIDE_MEMORY_BUDGET")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(asking)}
    path = os.pathsep.join(filter(None, (str(TRAINING), inherited.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory() as compiled:
        environment = counted_environment({**inherited, "PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": compiled})
        command = [sys.executable, str(HERE / script), *(f"--{name}={value}" for name, value in asked.items())]
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    sys.exit(f"{script} {asked} failed with exit code {done.returncode}")


class Points:
    """What is stored: {kind: {model: result}}, of torch.compile {model: {fraction: result}}."""

    def __init__(self):
        self.found = json.loads(POINTS.read_text()) if POINTS.exists() else {}

    def add(self, kind, model, result):
        self.found.setdefault(kind, {})[model] = result
        POINTS.write_text(json.dumps(self.found, indent=1) + "\n")


def measure(options, points):
    """What does not hold, in words."""
    how = {"rounds": options.rounds, "steps": options.steps}
    for model in options.models:
        if options.check:
            points.add("check", model, result := run("check.py", model=model))
            yield from faults_of_budgets(result)
        elif options.lengths:
            points.add("lengths", model, result := run("lengths.py", model=model))
            yield from faults_of_lengths(result)
        elif options.shapes:
            points.add("shapes", model, run("new_shapes.py", model=model))
        elif options.planned:
            points.add("planned", model, run("planned.py", model=model))
        elif options.asked:
            points.add("asked", model, run("turns.py", model=model, ways="eager,default,asked", **how))
        elif options.compile:
            for fraction in options.compile.split(","):
                known = points.found.get("compile", {}).get(model, {})
                result = run("compiled.py", model=model, budget=fraction, **how)
                points.add("compile", model, {**known, fraction: result})
        else:
            points.add("turns", model, run("turns.py", model=model, ways=",".join(options.ways), **how))


def main():
    options, points = arguments(), Points()
    faults = [] if options.stored else list(measure(options, points))
    text = document(points.found, platform.python_version())
    print(text)
    if options.write:
        DOCUMENT.write_text(text)
    for fault in faults:
        print(f"does not hold: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
