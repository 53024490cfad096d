"""What planning for a budget takes on long steps, and how near its plans are to their bound:
./dev bench budget_planning [--models] [NODES ...]

Without --models: stacks of MLP blocks, made from text, with about so many nodes in a training step (500, 5,000 and
20,000). With it: the six models of ./dev bench training. Nothing runs. Each step is planned in a process of its own,
for its memory. Seconds of the processor do not count other work on the machine; what is planned at the same time on
several cores takes fewer of the clock.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

from lowtide import _lowtide

MODELS = ("gpt2", "llama", "bert", "vit", "resnet50", "bloom3")
WIDTH, ROWS = 64, 256
NODES_PER_BLOCK = 13
THREADS = len(os.sched_getaffinity(0))
GEMM = "Gemm(alpha=1.0, beta=1.0, transA=false, transB=true)"


def stack(blocks):
    """The text of a forward graph: norm, linear, GELU, linear, residual; so many times."""
    inputs, nodes, x = [f"%x: f32[N, {WIDTH}] input"], [], "%x"
    for i in range(blocks):
        wide = 4 * WIDTH
        sizes = {"g": [WIDTH], "b": [WIDTH], "u": [wide, WIDTH], "c": [wide], "d": [WIDTH, wide]}
        inputs += [f"%{name}{i}: f32[{', '.join(map(str, each))}] param" for name, each in sizes.items()]
        norm = f"LayerNormalization(axis=1, epsilon=1e-05) {x}, %g{i}, %b{i}"
        nodes += [
            f"%n{i}: f32[N, {WIDTH}], %m{i}: f32[N], %r{i}: f32[N] = {norm}",
            f"%h{i}: f32[N, {wide}] = {GEMM} %n{i}, %u{i}, %c{i}",
            f"%a{i}: f32[N, {wide}] = Gelu %h{i}",
            f"%o{i}: f32[N, {WIDTH}] = {GEMM} %a{i}, %d{i}",
            f"%x{i}: f32[N, {WIDTH}] = Add {x}, %o{i}",
        ]
        x = f"%x{i}"
    body = "\n".join(f"  {node}" for node in nodes)
    return f"graph @stack({', '.join(inputs)}) {{\n{body}\n  return {x} output\n}}\n"


def graph_of(name):
    """(graph, sizes in the order of the session's symbols)"""
    if name not in MODELS:
        return _lowtide.Graph.parse(stack(max(1, round(int(name) / NODES_PER_BLOCK)))), lambda session: [ROWS]
    sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
    import models

    from lowtide.capture import capture

    model, make_batch = models.build(name)[:2]
    captured = capture(model.train(), (), make_batch())

    def sizes(session):
        places = [captured.imported.sizes.dims[symbol] for symbol in session.symbols]
        return [captured.exported.sizes[index][position] for index, position in places]

    return captured.graph, sizes


def held_mb():
    """The most that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(name):
    torch.set_num_threads(THREADS)
    _lowtide.install_torch(THREADS)  # its thread pool, and its convolutions, which are part of the plans
    graph, sizes_of = graph_of(name)
    before = held_mb()
    begin, started = time.process_time(), time.perf_counter()
    session = _lowtide.Session(graph)
    made, sizes = time.process_time(), sizes_of(session)
    frontier = json.loads(session.frontier(sizes))
    planned, waited = time.process_time(), time.perf_counter() - started
    most = held_mb() - before
    rungs = frontier["rungs"]
    high = frontier["default_peak_bytes"]
    half = min(rungs, key=lambda rung: abs(rung["peak_bytes"] - 0.5 * high))
    nodes = len(json.loads(session.step_model(sizes))["nodes"])
    gap = 1 - half["bound_extra_ms"] / half["extra_ms"] if half["extra_ms"] > 0 else 0
    print(
        f"{name:10}{nodes:8}{made - begin:10.1f}{planned - made:10.1f}{waited:8.1f}{most:8.0f}{len(rungs):7}"
        f"{rungs[-1]['peak_bytes'] / high:8.2f}{half['peak_bytes'] / high:8.2f}"
        f"{half['extra_ms']:10.2f}{half['bound_extra_ms']:10.2f}{gap:7.0%}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(prog="./dev bench budget_planning", description=__doc__.split(":")[0])
    parser.add_argument("--models", action="store_true", help="the six models of ./dev bench training")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("nodes", nargs="*", type=int, default=[500, 5000, 20000])
    options = parser.parse_args()
    if options.one:
        return measure(options.one)
    print(
        "session, plans: seconds of the processor; clock: of both by the clock; MB: the most that planning held; last:"
    )
    print("the plan nearest to half of the peak")
    print(
        f"{'step':10}{'nodes':>8}{'session':>10}{'plans':>10}{'clock':>8}{'MB':>8}{'rungs':>7}{'floor':>8}{'peak':>8}"
        f"{'extra ms':>10}{'bound ms':>10}{'gap':>7}",
        flush=True,
    )
    for name in MODELS if options.models else map(str, options.nodes):
        if subprocess.run([sys.executable, Path(__file__).parent, "--one", name]).returncode:
            sys.exit(f"budget_planning: {name} failed")


if __name__ == "__main__":
    main()
