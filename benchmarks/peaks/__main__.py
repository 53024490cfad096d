"""Planned peaks in program order and in the order that is chosen, and how good the estimate is by which orders are
judged: ./dev bench peaks [--zoo] [NAME ...]

Nothing runs: models are captured and planned, at the sizes of ./dev bench training (--zoo: the architectures of
tests/zoo.py).
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "training"), str(HERE.parents[1] / "tests")]

import models  # noqa: E402
import zoo  # noqa: E402

from lowtide import _lowtide  # noqa: E402
from lowtide.capture import Call, capture  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(prog="./dev bench peaks", description=__doc__.splitlines()[0])
    parser.add_argument("--zoo", action="store_true", help="the architectures of tests/zoo.py, not the six models")
    parser.add_argument("names", nargs="*")
    return parser.parse_args()


def symbol_values(session, captured, call):
    values = []
    for line in session.program_text().splitlines():
        if line.startswith("symbol "):
            _, _, tensor, dim = line.split()[:4]
            values.append(call.tensors[captured.sources[int(tensor)].index].shape[int(dim)])
    return values


def measure(model, batch):
    """What Session.memory tells, the estimate, and the seconds of stages: in program order, then in the chosen one."""
    captured = capture(model.train(), (), batch)
    for disabled in (["schedule_order"], []):
        session = _lowtide.Session(captured.graph, disabled_passes=disabled)
        values = symbol_values(session, captured, Call((), batch))
        yield session.memory(values), session.estimated_arena(values), session.report["seconds"]


def main():
    options = arguments()
    _lowtide.install_torch(2)  # its convolutions are part of the plans
    print(f"{'MB':14}{'peak':>10}{'ordered':>10}{'arena':>10}{'live':>10}{'estimate':>10}{'of arena':>10}  schedule")
    room = zoo if options.zoo else models
    for name in options.names or room.NAMES:
        model, make_batch = room.build(name)[:2]
        (before, _, _), (memory, estimate, seconds) = measure(model, make_batch())
        numbers = (
            before["planned_peak_bytes"],
            memory["planned_peak_bytes"],
            memory["arena_bytes"],
            memory["lower_bound_bytes"],
            estimate,
        )
        text = "".join(f"{number / 1e6:10.3f}" for number in numbers)
        share = estimate / memory["arena_bytes"]
        print(f"{name:14}{text}{share:10.4f}{seconds['schedule'] * 1e3:7.0f} ms", flush=True)


main()
