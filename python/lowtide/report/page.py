"""A plan as one HTML page that needs nothing from elsewhere: arenas as time × address pictures, and the frontier."""

import html
import json
from pathlib import Path

_HERE = Path(__file__).parent

_FRONTIER = """
<h2>Frontier</h2>
<p class="note">Each rung is a plan that is packed and checked. A budget gets the fastest rung that fits it. "At
least": no plan in this order of steps needs less extra time; "ms a MiB": what one MiB more would save.</p>
<div class="columns">
<svg id="curve" width="640" height="320" role="img" aria-label="planned peak against predicted time"></svg>
<div class="scroll"><table><thead><tr><th class="word"></th><th>peak</th><th>ms</th><th>extra ms</th>
<th>at least</th><th>ms a MiB</th><th>measured</th><th>values</th></tr></thead>
<tbody id="rungs"></tbody></table></div>
</div>
<h2 id="rung_title"></h2>
<div class="scroll"><table><thead><tr><th class="word">value</th><th class="word">what</th><th>bytes</th><th>ms</th>
<th class="word">where</th><th class="word">from</th></tr></thead><tbody id="values"></tbody></table></div>
"""


def write_page(path, heading, pictures, frontier=None, chosen=None):
    Path(path).write_text(page(heading, pictures, frontier, chosen), encoding="utf-8")


def page(heading, pictures, frontier=None, chosen=None):
    """`pictures`: [(title, what Session.arena_picture tells, as JSON text)], drawn side by side; `frontier`: of
    Session.frontier, parsed; `chosen`: the rung that is shown at first."""
    shown = [{"title": title, "picture": json.loads(text)} for title, text in pictures]
    views = "".join(
        f'<div class="view"><h3>{html.escape(each["title"])}</h3><canvas id="arena{number}"></canvas></div>'
        for number, each in enumerate(shown)
    )
    # "</script>" inside the data would end it.
    data = json.dumps({"pictures": shown, "frontier": frontier, "chosen": chosen}).replace("<", "\\u003c")
    scripts = "".join((_HERE / name).read_text(encoding="utf-8") for name in ("arena.js", "frontier.js"))
    title = html.escape(heading)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>{(_HERE / "page.css").read_text(encoding="utf-8")}</style></head>
<body><h1>{title}</h1>
<p class="note">Each rectangle is a buffer: its steps from left to right, its addresses from bottom to top. The line is
the sum of what is live. Wheel: zoom (shift: time alone, alt: addresses alone); drag: move; double click: whole.</p>
<div class="bar"><label>colour by <select id="by"><option value="kind">kind</option><option value="module">module
</option></select></label><input type="search" id="search" placeholder="name, module, line or op">
<span id="found"></span><button id="reset">whole</button><div class="legend" id="legend"></div></div>
<div class="views">{views}</div><div id="tip"></div>
{_FRONTIER if frontier else ""}
<script type="application/json" id="data">{data}</script>
<script>{scripts}
const data = JSON.parse(document.getElementById("data").textContent);
showArenas(data.pictures);
if (data.frontier) showFrontier(data.frontier, data.chosen);
</script></body></html>
"""
