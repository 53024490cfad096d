"""The plans that the memory optimizer offers for a model of benchmarks/training, largest saving first; run by
__main__.py in a process of its own: prints one line of JSON."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))
from models import build  # noqa: E402

from lowtide.ortmodule import ORTModule  # noqa: E402

if __name__ == "__main__":
    model, make_batch = build(sys.argv[1])
    module = ORTModule(model)
    module(**make_batch())
    print("RESULT " + json.dumps([row["combination"] for row in module.memory_opportunities()]))
