"""Writes docs/architectures.md: how each architecture of tests/zoo.py and tests/wide_zoo.py runs in the engine.

./dev python tests/training/list_architectures.py [NAME …]    # of these alone; the other rows stay as they are
"""

import collections
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architectures.md"

INTRODUCTION = """\
# Architectures

How the models of `tests/zoo.py` and, from mamba on, `tests/wide_zoo.py` (transformers 5.18, tiny, in training mode,
without dropout) run in the engine: none falls back to PyTorch as a whole. `tests/training` trains each against eager.

- *pieces*: how many of the module's graphs run in the engine, of how many ([torch-compile.md](torch-compile.md)); 1 is
  the whole module.
- *time*: the engine's share of a step's, beside plain Python between pieces; of one graph all of it.
- *captured*: nodes of the exported forward graph, and how many of these are lowered to ops of lowtide.
- *native*: steps of the program, forward and backward, on lowtide's kernels or BLAS. Views are no steps.
- *PyTorch's kernels*: steps of lowered ops that call PyTorch's compiled kernel, without Python: convolution.
- *fallbacks*: captured nodes without a lowering. They run through Python with PyTorch's kernel and its autograd.

Written by `./dev python tests/training/list_architectures.py`; a test compares the last column.

| architecture | pieces | time | captured | lowered | native | PyTorch's kernels | fallbacks |
|---|---|---|---|---|---|---|---|
"""


def fallbacks(report):
    """ "aten::histc.default (model.moe, m.py:3)", … → "2 × aten::histc.default"."""
    counts = collections.Counter(call.partition(" ")[0] for call in report["fallbacks"])
    return ", ".join(f"{count} × `{target}`" for target, count in sorted(counts.items())) or "none"


def _rows():
    """Lines of the page."""
    return [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]


def documented():
    """Architecture → its fallbacks on the page."""
    rows = [line.strip("|").split("|") for line in _rows()]
    return {cells[0].strip(): cells[-1].strip() for cells in rows}


def row(name, report, pieces="1", time="100%"):
    calls = len(report["fallbacks"])
    cells = (pieces, time, report["lowered"] + calls, report["lowered"], report["native_nodes"], report["aten_nodes"])
    return f"| {name} | {' | '.join(map(str, cells))} | {fallbacks(report)} |\n"


def main():
    sys.path.insert(0, str(ROOT / "tests"))
    import compare
    import wide_zoo
    import zoo

    from lowtide.ortmodule import ORTModule

    wanted = sys.argv[1:]
    lines = {line.split()[1]: f"{line}\n" for line in _rows()} if wanted else {}
    builds = {**dict.fromkeys(zoo.NAMES, zoo.build), **dict.fromkeys(wide_zoo.NAMES, wide_zoo.build)}
    if unknown := set(wanted) - builds.keys():
        sys.exit(f"no such architecture: {', '.join(sorted(unknown))}")
    for name in wanted or builds:
        model, make_batch = builds[name](name)
        wrapped = ORTModule(model)
        wrapped(**make_batch()).loss.backward()
        if wrapped._training_manager.last_step:
            for _ in range(2):  # the first steps compile
                wrapped(**make_batch()).loss.backward()
        step = wrapped._training_manager.last_step
        assert step or wrapped.fallback_reason is None, wrapped.fallback_reason
        if step:
            pieces = f"{len(step.in_engine)} of {len(step.ran)}"
            lines[name] = row(name, step.report(), pieces, f"{step.share():.0%}")
        else:
            lines[name] = row(name, compare.report(wrapped))
        print(lines[name], end="", flush=True)
    PAGE.write_text(INTRODUCTION + "".join(lines[name] for name in builds if name in lines))


if __name__ == "__main__":
    main()
