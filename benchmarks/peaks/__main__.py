"""Planned peaks in program order and in the one that is chosen, and how near the plan's timeline is to what is packed:
./dev bench peaks [--zoo] [NAME ...]

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
from lowtide.capture import capture  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(prog="./dev bench peaks", description=__doc__.splitlines()[0])
    parser.add_argument("--zoo", action="store_true", help="the architectures of tests/zoo.py, not the six models")
    parser.add_argument("names", nargs="*")
    return parser.parse_args()


def measure(model, batch):
    """What Session.memory tells, the timeline's peak, the seconds of stages: in program order, and in the chosen."""
    captured = capture(model.train(), (), batch)
    for disabled in (["schedule_order"], []):
        session = _lowtide.Session(captured.graph, disabled_passes=disabled)
        places = [captured.imported.sizes.dims[name] for name in session.symbols]
        values = [captured.exported.sizes[index][position] for index, position in places]
        yield session.memory(values), session.timeline_peak(values), session.report["seconds"]


def main():
    options = arguments()
    _lowtide.install_torch(2)  # its convolutions are part of the plans
    print(f"{'MB':14}{'peak':>10}{'ordered':>10}{'arena':>10}{'live':>10}{'timeline':>10}{'of arena':>10}  schedule")
    room = zoo if options.zoo else models
    for name in options.names or room.NAMES:
        model, make_batch = room.build(name)[:2]
        (before, _, _), (memory, timeline, seconds) = measure(model, make_batch())
        numbers = (
            before["planned_peak_bytes"],
            memory["planned_peak_bytes"],
            memory["arena_bytes"],
            memory["lower_bound_bytes"],
            timeline,
        )
        text = "".join(f"{number / 1e6:10.3f}" for number in numbers)
        share = timeline / memory["arena_bytes"]
        print(f"{name:14}{text}{share:10.4f}{seconds['schedule'] * 1e3:7.0f} ms", flush=True)


main()
