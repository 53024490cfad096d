"""What `lowtide plan --ranks` tells of the benchmark models: `simulated:gpt2` is one for the command line."""

import json
from pathlib import Path

from lowtide.cli.model import load
from lowtide.cli.network import read_network
from lowtide.cli.ranks import simulate

NETWORK = Path(__file__).resolve().with_name("network.json")
COUNTS = (8, 64, 1024)


def __getattr__(name):
    from models import NAMES, build

    if name not in NAMES:
        raise AttributeError(name)

    def call():
        model, make_batch = build(name)
        return model, (), make_batch()

    return call


def simulated(name):
    """Rows without their messages, and the network that they are of."""
    found = simulate(load(f"simulated:{name}"), {}, COUNTS, read_network(NETWORK))
    rows = [{**told.for_programs(), "messages": len(told.simulated.messages)} for told in found]
    return {"network": json.loads(NETWORK.read_text()), "rows": rows}
