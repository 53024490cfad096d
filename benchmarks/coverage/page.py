"""docs/ops.md, written and read."""

from pathlib import Path

from kinds import NATIVE, PYTORCH, REFUSED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ops.md"

INTRODUCTION = """\
# Ops

Where lowtide runs the ops of PyTorch {version}, as PyTorch's own samples of float32 call them (`OpInfo`, {samples}
samples of {ops} ops, forms in place and variants among them; forward and gradient compared with eager). Written by
`./dev bench coverage`; a test compares a part.

- *native*: lowered to ops of lowtide, which the memory optimizer knows.
- *PyTorch's kernel*: an `aten::` step of the plan: PyTorch's kernel forward, its autograd backward.
- *refused*: not in one graph; the module, or the piece around the call, runs in PyTorch with the reason.
"""
HEADINGS = {
    (NATIVE,): "native",
    (NATIVE, PYTORCH): "native, for some arguments PyTorch's kernel",
    (PYTORCH,): "PyTorch's kernel",
}


def where(coverage):
    """The places where samples ran, in order."""
    return tuple(place for place in (NATIVE, PYTORCH, REFUSED) if coverage.counts[place])


def lines_of(coverages):
    """The page below its introduction: line after line."""
    for places, heading in HEADINGS.items():
        names = [f"`{each.name}`" for each in coverages if where(each) == places]
        yield from ("", f"## {heading} ({len(names)})", "", ", ".join(names))
    refused = [each for each in coverages if each.counts[REFUSED]]
    yield from ("", f"## refused ({len(refused)})", "", "| op | refused of its samples | why | the others |")
    yield "|---|---:|---|---|"
    for each in refused:
        others = ", ".join(HEADINGS[(place,)] for place in where(each) if place != REFUSED)
        reasons = "; ".join(sorted(each.reasons))
        yield f"| `{each.name}` | {each.counts[REFUSED]} of {each.total} | {reasons} | {others} |"


def write(coverages, version):
    samples = sum(each.total for each in coverages)
    introduction = INTRODUCTION.format(version=version, samples=f"{samples:,}", ops=len(coverages))
    PAGE.write_text(introduction + "\n".join(lines_of(coverages)) + "\n")


def documented():
    """Op → its heading on the page, or its reasons if it is refused."""
    found, heading = {}, ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            heading = line[3:].rpartition(" (")[0]
        elif heading and line.startswith("`"):
            found.update((name.strip("`"), heading) for name in line.split(", "))
        elif line.startswith("| `"):
            name, _, reasons, _ = (cell.strip() for cell in line.strip("|").split(" | "))
            found[name.strip("`")] = reasons
    return found
