"""Comparisons as one self-contained HTML page: a heat map of relative differences, tensors by steps."""

import html
import json
import math

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em; color: #222; background: #fff }
h1 { font-size: 1.4em } h2 { font-size: 1.15em; margin-top: 2em }
p.diverges { color: #a40000; font-weight: 600 }
.map { overflow: auto; max-height: 80vh; border: 1px solid #ccc; display: inline-block; max-width: 100% }
table.heat { border-collapse: collapse; font-size: 12px }
table.heat th { position: sticky; top: 0; background: #fff; font-weight: 600; padding: 2px 6px }
table.heat td.name { padding: 0 8px; white-space: nowrap; font-family: ui-monospace, monospace }
table.heat td.cell { min-width: 22px; height: 15px; border: 1px solid #fff }
table.heat td.first { outline: 2px solid #000; outline-offset: -2px }
.legend span { display: inline-block; padding: 2px 8px; margin-right: 2px }
"""

# Cells are made in the browser: a page of 100,000 tensors stays a few megabytes.
_SCRIPT = """
const colours = ["#f3f6f9", "#dbe9f4", "#b7d5e8", "#8dbcd6", "#f6e3a1", "#f3b562", "#e8743b", "#c4281c", "#7a0012"];
function colour(level) { return level < 0 ? "#eeeeee" : colours[level] }
for (const map of JSON.parse(document.getElementById("data").textContent)) {
  const table = document.getElementById(map.id), head = table.insertRow();
  for (const title of ["", ...map.steps]) {
    const cell = document.createElement("th");
    cell.textContent = title;
    head.append(cell);
  }
  for (const row of map.rows) {
    const line = table.insertRow(), name = line.insertCell();
    name.className = "name";
    name.textContent = row.name;
    row.levels.forEach((level, i) => {
      const cell = line.insertCell();
      cell.className = "cell" + (row.first === i ? " first" : "");
      cell.style.background = colour(level);
      cell.title = level < 0 ? "not in both runs" : `${row.name}, step ${map.steps[i]}: ${row.texts[i]}`;
    });
  }
}
const legend = document.getElementById("legend");
["0", "< 1e-7", "< 1e-6", "< 1e-5", "< 1e-4", "< 1e-3", "< 1e-2", "< 1e-1", "more"].forEach((text, level) => {
  const box = document.createElement("span");
  box.textContent = text;
  box.style.background = colours[level];
  if (level > 6) box.style.color = "white";
  legend.append(box);
});
"""


def write_page(path, comparisons, first, second):
    path.write_text(page(comparisons, first, second))


def page(comparisons, first, second):
    maps, sections = [], []
    for number, comparison in enumerate(comparisons):
        found = comparison.first_divergence
        heading = f"<h2>{html.escape(comparison.label)}</h2>" if comparison.label else ""
        if found is None:
            verdict = "<p>No divergence.</p>"
        else:
            told = f"step {found.step}, {found.direction}, {found.name}: {_text(found)}"
            verdict = f'<p class="diverges">First divergence: {html.escape(told)}</p>'
        sections.append(f'{heading}{verdict}<div class="map"><table class="heat" id="map{number}"></table></div>')
        maps.append(_map(f"map{number}", comparison))
    # "</script>" inside the data would end it.
    data = json.dumps(maps).replace("<", "\\u003c")
    title = f"{html.escape(str(first))} against {html.escape(str(second))}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>lowtide compare: {title}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{title}</h1>"
        "<p>Relative differences of statistics; rows are tensors in the order of their making, columns are steps. "
        'Point at a cell for its figures.</p><p class="legend" id="legend"></p>'
        f'{"".join(sections)}<script type="application/json" id="data">{data}</script>'
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


def _map(id_, comparison):
    columns = {step: index for index, step in enumerate(comparison.steps)}
    rows, found = {}, comparison.first_divergence
    for tensor in comparison.tensors:
        row = rows.get(tensor.file)
        if row is None:
            row = rows[tensor.file] = {
                "name": f"{tensor.name} {tensor.direction}",
                "levels": [-1] * len(columns),
                "texts": [""] * len(columns),
                "first": -1,
            }
        column = columns[tensor.step]
        if tensor.first and tensor.second:
            row["levels"][column], row["texts"][column] = _level(tensor.difference), _text(tensor)
        if tensor is found:
            row["first"] = column
    return {"id": id_, "steps": comparison.steps, "rows": list(rows.values())}


def _level(difference):
    """0: equal, then one for each power of ten from 1e-7 on."""
    if difference == 0:
        return 0
    if not math.isfinite(difference):
        return 8
    return min(8, max(1, 9 + math.floor(math.log10(difference))))


def _text(tensor):
    if tensor.reason == "missing":
        return "in one run alone"
    return f"{tensor.difference:.2e} ({tensor.reason})" if tensor.difference else "equal"
