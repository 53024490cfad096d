"""Training on several processes: ./dev bench distributed [MODEL ...] [--ranks 2] [--wrappers ddp,zero1] [--write]
./dev bench distributed --tests [...]

Each wrapper around each way to run the model takes its turn, round by round, in fresh processes that torchrun starts
under a counter of malloc and mmap; cores are divided among ranks. What is found is stored in
benchmarks/distributed/points.json, of which --write makes the figures of docs/distributed.md. --overlap records when
gradients leave and buckets travel in one backward instead; --in-backward counts bytes of one process whose optimizer
updates in backward; --simulate tells of 8 to 1,024 processes on the network of network.json, which are not there;
--tests runs the tests that train whole models, and tells which have run.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TRAINING = HERE.parent / "training"
sys.path.insert(0, str(TRAINING))

from memory_counter import counted_environment  # noqa: E402
from models import NAMES  # noqa: E402
from modes import MODES, find_mode  # noqa: E402
from others import share_of_others  # noqa: E402
from page import BEGIN, END, figures  # noqa: E402
from trained import run_tests  # noqa: E402
from wrappers import WRAPPERS  # noqa: E402

POINTS = HERE / "points.json"
DOCUMENT = HERE.parents[1] / "docs" / "distributed.md"
LIMIT_S = 900  # of one turn


def arguments():
    parser = argparse.ArgumentParser(prog="./dev bench distributed", description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(NAMES)} (gpt2, bert, llama)")
    parser.add_argument("--ranks", type=int, default=2, help="processes (2)")
    parser.add_argument("--wrappers", help=f"of {', '.join(WRAPPERS)} (all that are installed)")
    parser.add_argument("--ways", default="eager,lowtide", help=f"of {', '.join(MODES)} (eager,lowtide)")
    parser.add_argument("--steps", type=int, default=3, help="timed steps a turn (3)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each (2)")
    parser.add_argument("--overlap", action="store_true", help="instead: events of one backward under ddp")
    parser.add_argument("--in-backward", action="store_true", help="instead: bytes with an optimizer in backward")
    parser.add_argument("--simulate", action="store_true", help="instead: 8 to 1,024 processes that are not there")
    parser.add_argument("--tests", nargs=argparse.REMAINDER, help="instead: the tests; what follows is pytest's")
    parser.add_argument("--stored", action="store_true", help="measure nothing: what is stored")
    parser.add_argument("--write", action="store_true", help=f"write the figures of docs/{DOCUMENT.name}")
    parsed = parser.parse_args()
    parsed.models = parsed.models or ["gpt2", "bert", "llama"]
    parsed.wrappers = parsed.wrappers.split(",") if parsed.wrappers else installed_wrappers()
    parsed.ways = parsed.ways.split(",")
    for wanted, known in ((parsed.models, NAMES), (parsed.wrappers, WRAPPERS), (parsed.ways, MODES)):
        if unknown := [name for name in wanted if name not in known]:
            parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return parsed


def installed_wrappers():
    has_deepspeed = importlib.util.find_spec("deepspeed") is not None
    return [name for name in WRAPPERS if has_deepspeed or not name.startswith("zero")]


def run_ranks(script, ranks, way, **asked):
    """Results of all ranks of a script of this folder, or what went wrong."""
    asking = ("ORTMODULE_MEMORY_OPT_", "LOWTIDE_MEMORY_BUDGET")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(asking)}
    path = os.pathsep.join(filter(None, (str(TRAINING), inherited.get("PYTHONPATH"))))
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    environment = counted_environment({**inherited, **find_mode(way).environment, "PYTHONPATH": path})
    environment["OMP_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += [str(HERE / script), f"--folder={folder}", f"--mode={way}"]
        command += [f"--{name}={value}" for name, value in asked.items()]
        started = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            _, errors = started.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"no end within {LIMIT_S} s"
        finally:
            if started.poll() is None:
                started.terminate()  # it ends its ranks, which are in sessions of their own
                started.wait()
        files = [Path(folder, f"rank{rank}.json") for rank in range(ranks)]
        if started.returncode or not all(file.exists() for file in files):
            print(errors[-4000:], file=sys.stderr)
            return f"failed with exit code {started.returncode}"
        return [json.loads(file.read_text()) for file in files]


def merged(rows):
    """Of one turn: the slowest rank of each step, the rank that needs most."""
    total, busy, _ = rows[0]["processor_s"]
    return {
        **{name: value for name, value in rows[0].items() if name != "processor_s"},
        "cores": len(os.sched_getaffinity(0)),
        "others": share_of_others(total, busy, sum(row["processor_s"][2] for row in rows)),
        "step_times_ms": [max(times) for times in zip(*(row["step_times_ms"] for row in rows), strict=True)],
        **{name: max(row[name] for row in rows) for name in rows[0] if name.endswith("_bytes")},
    }


def measure(options, model, points):
    """One row a wrapper and way, stored as it is found."""
    found = {(wrapper, way): [] for wrapper in options.wrappers for way in options.ways}
    for number in range(options.rounds):
        for wrapper, way in found:
            ranks = run_ranks("one_rank.py", options.ranks, way, model=model, wrapper=wrapper, steps=options.steps)
            found[wrapper, way].append(ranks if isinstance(ranks, str) else merged(ranks))
            row = {"wrapper": wrapper, "way": way, **over_rounds(found[wrapper, way])}
            points.add("turns", f"{model}/{options.ranks}", f"{wrapper}/{way}", row)
            print(f"round {number + 1}/{options.rounds}  {model} {wrapper} {way}", file=sys.stderr, flush=True)
            yield row


def over_rounds(rows):
    if errors := [row for row in rows if isinstance(row, str)]:
        return {"error": errors[0]}
    row = dict(rows[0])
    row["step_times_ms"] = [ms for one in rows for ms in one["step_times_ms"]]
    for name in rows[0]:
        if name.endswith("_bytes") or name == "others":
            row[name] = max(one[name] for one in rows)
        elif name.endswith("_ms") and name != "step_times_ms":
            row[name] = sum(one[name] for one in rows) / len(rows)
    return row


class Points:
    """What is stored: {"turns": {model/ranks: {wrapper/way: row}}, "overlap": {model: {way: trace}},
    "in_backward": {model: {way: bytes}}, "tests": {wrapper/model/case/ranks: cell}, "simulated": {model: rows}}."""

    def __init__(self):
        self._read()

    def _read(self):
        """Again before each write: another run may have stored something meanwhile."""
        self.found = json.loads(POINTS.read_text()) if POINTS.exists() else {}

    def add(self, kind, group, key, result):
        self._read()
        self.merge(kind, {group: {**self.found.get(kind, {}).get(group, {}), key: result}})

    def merge(self, kind, groups):
        self._read()
        self.found.setdefault(kind, {}).update(groups)
        POINTS.write_text(json.dumps(self.found, indent=1) + "\n")


def trace(options, model, points):
    for way in options.ways:
        ranks = run_ranks("overlap.py", options.ranks, way, model=model)
        if isinstance(ranks, str):
            yield {"error": ranks}
        else:
            points.add("overlap", model, way, ranks[0])


def update_in_backward(options, model, points):
    for way in options.ways:
        ranks = run_ranks("in_backward.py", 1, way, model=model)
        if isinstance(ranks, str):
            yield {"error": ranks}
        else:
            points.add("in_backward", model, way, ranks[0])


def predict(options, model, points):
    from simulated import simulated

    found = simulated(model)
    points.add("simulated", model, "network", found["network"])
    points.add("simulated", model, "rows", found["rows"])
    return found["rows"]


def main():
    options, points = arguments(), Points()
    cells = {}
    if options.tests is not None:
        cells = run_tests(options.tests)
        points.merge("tests", cells)
        options.models = []
    instead = {trace: options.overlap, update_in_backward: options.in_backward, predict: options.simulate}
    found, work = [], next((each for each, asked in instead.items() if asked), measure)
    for model in [] if options.stored else options.models:
        found += work(options, model, points)
    failed = any("error" in row for row in found) or not all(cell["right"] for cell in cells.values())
    block = figures(points.found)
    print(block)
    if options.write:
        before, _, rest = DOCUMENT.read_text().partition(BEGIN)
        DOCUMENT.write_text(before.rstrip() + "\n\n" + block + rest.partition(END)[2].rstrip() + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
