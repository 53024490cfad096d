"""`lowtide analyze`: the layers of a model, what its training step keeps for backward, and what could be given up."""

import argparse
import contextlib
import json
import sys
import time

import torch

from lowtide.ortmodule.feature_table import layout, memory_optimizer_row
from lowtide.ortmodule.options import MemoryOptions

from .model import load, parse_dims, symbol_values

_EPILOG = """examples:
  lowtide analyze my_models:gpt2                              my_models.gpt2() returns (model, args, kwargs)
  lowtide analyze my_models:gpt2 --dims batch=8,seq=512       the same model at other sizes
  lowtide analyze my_models:gpt2 --config "FastGelu+:1:12"    with twelve FastGelu recomputed
  lowtide analyze step.ir --dims n=64 --json                  a graph in text form, forward or training
  lowtide analyze model.onnx --loss loss --dims batch=8       an ONNX file and the name of its loss output
"""


def add_to(commands):
    parser = commands.add_parser(
        "analyze",
        help="memory of a training step: what could be recomputed or compressed",
        description=__doc__.strip(),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", metavar="MODEL", help="module:function, or the path of a graph in text form or an .onnx file"
    )
    parser.add_argument("--loss", default="", metavar="NAME", help="of an .onnx file: the output that is the loss")
    parser.add_argument("--config", default="", help="as ORTMODULE_MEMORY_OPT_CONFIG: in force in what is shown")
    parser.add_argument("--level", type=int, default=0, choices=(0, 1, 2), help="as ORTMODULE_MEMORY_OPT_LEVEL (0)")
    parser.add_argument("--dims", default="", help="sizes by name, or batch= and seq= for first and second dims")
    parser.add_argument("--probe", default="", help="as ORTMODULE_MEMORY_OPT_PROBE_CONFIG: LEVEL:BOUNDARY")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(run=run)


def run(options):
    dims = parse_dims(options.dims)
    memory = MemoryOptions(options.config, options.level, options.probe)
    with _step("capturing"), contextlib.redirect_stdout(sys.stderr):
        model = load(options.model, options.loss)
    with _step("planning"):
        session = model.plan(memory.for_session())
    values = symbol_values(model, session.symbols, dims)
    with _step("planning once for each row"):
        stat = session.memory_stat("", "", values, with_peaks=True)
    for notice in dict.fromkeys([*session.memory_notices(), *stat["notices"]]):
        print(f"lowtide analyze: {notice}", file=sys.stderr)
    sizes = dict(zip(session.symbols, values, strict=True))
    print(_json(session, stat, sizes) if options.json else _text(model, session, stat, sizes, memory))
    return 0


def _json(session, stat, sizes):
    return json.dumps({"layers": session.layers(), "dims": sizes, **json.loads(stat["json"])}, indent=1)


def _text(model, session, stat, sizes, memory):
    layers = session.layers()
    return "\n".join(
        [
            f"{model.name} at {', '.join(f'{name}={size}' for name, size in sizes.items()) or 'constant sizes'}",
            f"planned peak {_bytes(stat['peak_with'])}, without recompute {_bytes(stat['peak_without'])}",
            f"layers: {len(layers)}" + "".join(f"\n  {path}" for path in layers),
            "",
            *layout([memory_optimizer_row(memory, stat)]),
            "",
            *_times(json.loads(stat["json"])),
            "",
            stat["insight"].strip("\n"),
            "",
            stat["summary"].strip("\n"),
        ]
    )


def _times(told):
    """What a plan costs beside what it saves; `told`: the JSON of Session.memory_stat."""
    if not told["rows"]:
        return
    speed = _Speed()
    yield f"estimated time of what runs once more in backward ({speed}):"
    for number, row in enumerate(told["rows"], 1):
        candidates = [told["candidates"][index] for index in row["candidates"]]
        flops, moved = (sum(candidate[key] or 0 for candidate in candidates) for key in ("extra_flops", "extra_bytes"))
        saves = _bytes(row["saving"])
        yield f"  Plan {number:<3} {speed.ms(flops, moved):9.3f} ms  saves {saves:>12}  {row['combination']}"


class _Speed:
    """This machine's, measured: multiplications, and bytes moved."""

    def __init__(self):
        square, line = torch.randn(768, 768), torch.randn(4_000_000)
        self.flops = 2 * 768**3 / _seconds(lambda: square @ square)
        self.bytes = 2 * line.nbytes / _seconds(lambda: line + 1.0)

    def ms(self, flops, moved_bytes):
        return max(flops / self.flops, moved_bytes / self.bytes) * 1e3

    def __str__(self):
        return f"at {self.flops / 1e9:.0f} GFLOP/s and {self.bytes / 1e9:.0f} GB/s, measured here"


def _seconds(work):
    def once():
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return min(once() for _ in range(5))


def _bytes(count):
    if count is None:
        return "unknown"
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count:,} B"


@contextlib.contextmanager
def _step(name):
    """Says on standard error what takes its time."""
    start = time.monotonic()
    print(f"{name} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(f" {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
