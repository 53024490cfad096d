"""Writes docs/architectures.md: how each architecture of tests/zoo.py and tests/wide_zoo.py trains, through both doors.

./dev python tests/training/list_architectures.py [NAME …]    # of these alone; the other rows stay as they are
"""

import collections
import copy
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architectures.md"

INTRODUCTION = """\
# Architectures

How the models of `tests/zoo.py` and, from mamba on, `tests/wide_zoo.py` (transformers 5.18, tiny, fp64, in training
mode, without dropout) train beside eager: none falls back to PyTorch as a whole, and `tests/training` compares each
with eager at every change. A name with * computes a part in fp32 itself: there fp32's rounding is the measure.

Through `ORTModule`:

- *pieces*: how many of the module's graphs run in the engine, of how many ([torch-compile.md](torch-compile.md)); 1 is
  the whole module.
- *time*: the engine's share of a step's, beside plain Python between pieces; of one graph all of it.
- *exports*: of the first sizes, then of further ones (another batch and length).
- *loss*, *gradient*: the largest difference from eager's on three batches of two sizes: relative, of gradients to the
  parameter's largest entry.
- *first call*: seconds of the processor (of all threads) in the first forward and backward, and torch.export's own part
  of them.

Through `torch.compile(backend="lowtide")`:

- *graphs*: those that Dynamo makes of the first sizes, then of further ones. *loss*, *gradient* as above.

The program of `ORTModule` (those of `tests/zoo.py` in fp32):

- *native*: steps, forward and backward, on lowtide's kernels or BLAS. Views are no steps.
- *PyTorch's*: steps that call PyTorch's compiled kernel, without Python.
- *fallbacks*: captured nodes without a lowering. They run through Python with PyTorch's kernel and its autograd.

Written by `./dev python tests/training/list_architectures.py`; a test compares the last column.

"""
COLUMNS = (
    *("architecture", "pieces", "time", "exports", "loss", "gradient", "first call", "torch.export"),
    *("graphs", "loss", "gradient", "native", "PyTorch's", "fallbacks"),
)
SIZES = ((2, 16), (2, 16), (3, 24))  # (batch, length) of each batch


def fallbacks(report):
    """ "aten::histc.default (model.moe, m.py:3)", … → "2 × aten::histc.default"."""
    counts = collections.Counter(call.partition(" ")[0] for call in report["fallbacks"])
    return ", ".join(f"{count} × `{target}`" for target, count in sorted(counts.items())) or "none"


def _rows():
    """Architecture → its line of the page."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    return {line.split()[1].rstrip("*"): line for line in lines}


def documented():
    """Architecture → its fallbacks on the page."""
    return {name: line.strip("|").split("|")[-1].strip() for name, line in _rows().items()}


class _Exports:
    """Counts torch.export's calls, and their seconds."""

    def __enter__(self):
        import torch

        self.count, self.seconds, self._export = 0, 0.0, torch.export.export
        torch.export.export = self._counted
        return self

    def __exit__(self, *_):
        import torch

        torch.export.export = self._export

    def _counted(self, *args, **kwargs):
        begin = time.process_time()
        try:
            return self._export(*args, **kwargs)
        finally:
            self.count += 1
            self.seconds += time.process_time() - begin


def _step(module, batch):
    module.zero_grad()
    loss = module(**batch).loss
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in module.named_parameters()}


def _errors(steps, eager):
    """(of losses, of gradients): the largest of the batches."""
    from compare import distances

    losses = max(abs(ours - theirs) / abs(theirs) for (ours, _), (theirs, _) in zip(steps, eager, strict=True))
    gradients = distances([gradients for _, gradients in steps], [gradients for _, gradients in eager])
    return f"{losses:.0e}", f"{max(gradients.values()):.0e}"


def through_ortmodule(model, batches, eager):
    """(cells of the page, the session's report or that of all pieces)."""
    from compare import report

    from lowtide.ortmodule import ORTModule

    wrapped, steps = ORTModule(model), []
    with _Exports() as exports:
        begin = time.process_time()
        steps.append(_step(wrapped, batches[0]))
        seconds, exporting, first_exports = time.process_time() - begin, exports.seconds, exports.count
        steps += [_step(wrapped, batch) for batch in batches[1:]]
    pieces, share = "1", "100%"
    if wrapped._training_manager.last_step:
        for _ in range(3):  # the first steps compile
            _step(wrapped, batches[-1])
        step = wrapped._training_manager.last_step
        pieces, share = f"{len(step.in_engine)} of {len(step.ran)}", f"{step.share():.0%}"
    else:
        assert wrapped.fallback_reason is None, wrapped.fallback_reason
    told = f"{first_exports} + {exports.count - first_exports}"
    cells = (pieces, share, told, *_errors(steps, eager), f"{seconds:.1f}", f"{exporting:.1f}")
    return cells, report(wrapped)


def through_compile(model, batches, eager):
    """Cells of the page."""
    import torch

    from lowtide import compile_backend

    pieces, counts, steps = [], [], []

    def backend(*args, **kwargs):
        pieces.append(compile_backend.lowtide(*args, **kwargs))
        return pieces[-1]

    torch.compiler.reset()
    model.compile(backend=backend)
    for batch in batches:
        steps.append(_step(model, batch))
        counts.append(len(pieces))
    torch.compiler.reset()
    reasons = {piece.fallback_reason for piece in pieces} - {None}
    assert pieces and not reasons, reasons
    return f"{counts[0]} + {counts[-1] - counts[0]}", *_errors(steps, eager)


def program(model, batch):
    """The report of the session of one step."""
    from compare import report

    from lowtide.ortmodule import ORTModule

    wrapped = ORTModule(model)
    _step(wrapped, batch)
    return report(wrapped)


def row(name, build, build_fp32=None):
    """The line of one architecture; its program is that of fp32 where the tests train that."""
    model, make_batch = build(name)
    batches = [make_batch(batch=batch, length=length, seed=seed) for seed, (batch, length) in enumerate(SIZES)]
    eager = [_step(copy.deepcopy(model), batch) for batch in batches]
    wrapped, report = through_ortmodule(copy.deepcopy(model), batches, eager)
    compiled = through_compile(model, batches, eager)
    if build_fp32:
        model, make_batch = build_fp32(name)
        report = program(model, make_batch())
    cells = (*wrapped, *compiled, report["native_nodes"], report["aten_nodes"], fallbacks(report))
    return " | ".join(map(str, cells))


def main():
    sys.path.insert(0, str(ROOT / "tests"))
    import torch
    import wide_zoo
    import zoo

    wanted = sys.argv[1:]
    lines = _rows() if wanted else {}
    builds = dict.fromkeys(zoo.NAMES, lambda name: zoo.build(name, dtype=torch.float64))
    builds |= dict.fromkeys(wide_zoo.NAMES, wide_zoo.build)
    if unknown := set(wanted) - builds.keys():
        sys.exit(f"no such architecture: {', '.join(sorted(unknown))}")
    row("bert", builds["bert"])  # what the first call of a process loads is in no row
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    for name in wanted or builds:
        starred = f"{name}*" if name in (*zoo.IN_FP32, *wide_zoo.IN_FP32) else name
        with wide_zoo.surroundings(name):
            lines[name] = f"| {starred} | {row(name, builds[name], zoo.build if name in zoo.NAMES else None)} |"
        print(lines[name], flush=True)
        if wanted or len(lines) == len(builds):
            PAGE.write_text(INTRODUCTION + head + "".join(f"{lines[name]}\n" for name in builds if name in lines))


if __name__ == "__main__":
    main()
