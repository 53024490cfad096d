"""A profile as one HTML page that needs nothing from elsewhere, in the style of lowtide's other pages."""

import html
from pathlib import Path

from profile_tables import COLUMNS, cells, summary

import lowtide.report

_STYLE = (Path(lowtide.report.__file__).parent / "page.css").read_text(encoding="utf-8")
_BAR = "td.word { background: linear-gradient(90deg, #8ccdf0 var(--share), #0000 0) }"


def page(title, shown):
    """`shown`: of tables()."""
    parts = []
    for name, column, found in shown["tables"]:
        heads = "".join(f"<th>{each}</th>" for each in COLUMNS)
        longest = max((sums["ms"] for _, sums in found), default=0)
        rows = "".join(_row(each, sums, shown["kernels_ms"], longest) for each, sums in found)
        parts.append(
            f'<h2>{name}</h2><div class="scroll"><table><thead><tr><th class="word">{column}</th>{heads}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>"
        )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<style>{_STYLE}{_BAR}</style></head>
<body><h1>{html.escape(title)}</h1>
<p class="note">{html.escape(summary(shown))} Medians of traced steps; GFLOP/s and GB/s from what an op has to compute
and to move, counted once: an operand that a kernel reads twice counts once.</p>
{"".join(parts)}
</body></html>
"""


def _row(name, sums, total, longest):
    share = f"{100 * sums['ms'] / longest:.1f}%" if longest else "0%"
    numbers = "".join(f"<td>{cell}</td>" for cell in cells(sums, total))
    return f'<tr><td class="word" style="--share: {share}">{html.escape(name)}</td>{numbers}</tr>'
