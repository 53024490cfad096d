"""Single layers beside eager: ./dev bench layers [NAME...] [--steps 7] [--eval] [--write]

Forward and backward of each, or forward in eval mode, ours and eager's in turns; the fastest of the steps counts, as
the machine is never quiet. With --write all of them into docs/layers.md.
"""

import argparse
import json
import time
import warnings
from collections import Counter
from datetime import date

import layers_page
import torch
from cases import CASES

from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule

WARM_UP = 3


def arguments():
    parser = argparse.ArgumentParser(prog="./dev bench layers", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="layers (all)")
    parser.add_argument("--steps", type=int, default=7, help="of each (7)")
    parser.add_argument("--eval", action="store_true", help="forward alone, in eval mode and without gradients")
    parser.add_argument("--write", action="store_true", help="into docs/layers.md")
    options = parser.parse_args()
    if options.write and (options.names or options.eval):
        parser.error("--write takes all layers, forward and backward")
    return options


def first_tensor(outputs):
    while isinstance(outputs, (tuple, list)):
        outputs = outputs[0]
    return outputs


def measure(build, steps, trains):
    """{"eager", "ours": ms; "kernels": those that took most of ours; "pytorch": why there is no graph, or None}."""
    torch.manual_seed(0)
    module, inputs = build()
    module.train(trains)
    engine = ORTModule(module, DebugOptions(log_level=LogLevel.ERROR))
    leaves = [each for each in inputs if isinstance(each, torch.Tensor) and each.requires_grad]
    output = first_tensor(module(*inputs)).detach()
    gradient = torch.randn_like(output)

    def step(call):
        for each in (*leaves, *module.parameters()):
            each.grad = None
        begin = time.perf_counter()
        if trains:
            first_tensor(call(*inputs)).backward(gradient)
        else:
            with torch.no_grad():
                call(*inputs)
        return (time.perf_counter() - begin) * 1e3

    for _ in range(WARM_UP):
        step(module)
        step(engine)
    times = [(step(module), step(engine)) for _ in range(steps)]
    reason = engine.fallback_reason
    found = {"eager": min(eager for eager, _ in times), "ours": min(ours for _, ours in times), "pytorch": reason}
    return {**found, "kernels": [] if reason else slowest(engine, lambda: step(engine))}


def slowest(engine, step):
    """Names of kernels, those of most of the time first."""
    session = engine._last_agent().session
    session.start_trace()
    step()
    spent = Counter()
    for event in json.loads(session.stop_trace())["traceEvents"]:
        spent[event["cat"]] += event["dur"]
    return [name for name, _ in spent.most_common(2) if name]


def main():
    options = arguments()
    warnings.simplefilter("ignore")
    rows = []
    for family, layers in CASES.items():
        for name, build in layers.items():
            if options.names and name not in options.names:
                continue
            rows.append({"family": family, "name": name, **measure(build, options.steps, not options.eval)})
            print(layers_page.line(rows[-1]), flush=True)
    if options.write:
        layers_page.write(rows, date.today())


if __name__ == "__main__":
    main()
