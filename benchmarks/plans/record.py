"""Records the packing problems of the six models as CSV beside this file: ./dev python benchmarks/plans/record.py"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "training"))

import models  # noqa: E402

from lowtide import _lowtide  # noqa: E402
from lowtide.capture import capture  # noqa: E402


def record(name):
    model, make_batch = models.build(name)[:2]
    batch = make_batch()
    captured = capture(model.train(), (), batch)
    session = _lowtide.Session(captured.graph)
    places = [captured.imported.sizes.dims[name] for name in session.symbols]
    sizes = [captured.exported.sizes[index][position] for index, position in places]
    (HERE / f"{name}.csv").write_text(session.packing_csv(sizes))
    print(name, session.memory(sizes))


if __name__ == "__main__":
    _lowtide.install_torch(2)  # its convolutions are part of the plans
    for name in sys.argv[1:] or models.NAMES:
        record(name)
