"""The texts of `lowtide plan`."""

import json

from lowtide.ortmodule.budget import format_bytes


def summary(told):
    rungs, frontier = told.rungs, told.frontier
    sizes = ", ".join(f"{name}={size}" for name, size in told.dims.items()) or "constant sizes"
    yield f"{told.name} at {sizes}"
    for place, word in told.marks().items():
        rung = rungs[place]
        share = rung["peak_bytes"] / frontier["default_peak_bytes"]
        yield (
            f"  {word:<16} peak {format_bytes(rung['peak_bytes']):>10}  {share:5.0%}   predicted "
            f"{rung['predicted_ms']:.2f} ms ({rung['extra_ms']:+.2f})"
        )
    if told.budget is None:
        return
    if told.chosen is None:
        yield f"no plan keeps within {format_bytes(told.budget)}: the least is {format_bytes(frontier['floor_bytes'])}"
        return
    rung = rungs[told.chosen]
    if rung["bound_extra_ms"] is not None and rung["extra_ms"] > 0:
        yield (
            f"the budget of {format_bytes(told.budget)} costs {rung['extra_ms']:.2f} ms; "
            f"no plan in this order of steps costs less than {rung['bound_extra_ms']:.2f} ms"
        )
    if told.chosen > 0 and (saved := rungs[told.chosen - 1]["ms_per_mib"]):
        yield f"1 MiB more saves {saved:.3g} ms"


def rungs_table(told):
    """The frontier, from the fastest plan to the smallest."""
    yield (
        f"{'':<16} {'peak':>12} {'ms':>10} {'extra':>9} {'at least':>9} {'in blocks':>9} {'1 MiB more saves':>17} "
        f"{'measured':>9}"
    )
    marks = told.marks()
    for place, rung in enumerate(told.rungs):
        saved = told.rungs[place - 1]["ms_per_mib"] if place else None
        columns = (
            f"{marks.get(place, ''):<16}",
            f"{format_bytes(rung['peak_bytes']):>12}",
            f"{rung['predicted_ms']:>10.2f}",
            f"{rung['extra_ms']:>9.2f}",
            f"{_ms(rung.get('bound_extra_ms')):>9}",
            f"{len(rung['row_blocks']) or '':>9}",
            f"{f'{saved:.3g} ms' if saved is not None else '':>17}",
            f"{_ms(rung.get('measured_ms')):>9}",
        )
        yield " ".join(columns).rstrip()


def _ms(value):
    return "" if value is None else f"{value:.2f}"


def sizes_table(told):
    """Peaks as a function of the dim that grows; with a budget, what fits each plan."""
    marks, name = told.marks(), told.growing.name
    yield "planned peak of each plan" + (f"; * within {format_bytes(told.budget)}" if told.budget else "")
    yield f"{name:>12}" + "".join(f"{word:>18}" for word in marks.values())
    for row in told.sizes:
        cells = []
        for place in marks:
            peak = row["peak_bytes"][str(place)]
            star = "*" if told.budget and peak <= told.budget else " "
            cells.append(f"{format_bytes(peak) + star:>18}")
        yield f"{row['size']:>12}" + "".join(cells)
    if told.budget is None:
        return
    low = told.growing.bounds.low
    yield f"{'largest':>12}" + "".join(f"{str(told.fits.get(place, f'below {low}')) + ' ':>18}" for place in marks)
    if told.longest is None:
        yield f"no plan fits {name}={low}"
    else:
        more = told.longest.next_bytes
        yield (
            f"longest {name}: {told.longest.size}, peak {format_bytes(told.longest.peak_bytes)}"
            + (f"; one more needs {format_bytes(more)}" if more else ", the range's end")
        )


def explanation(told, session, value, values):
    """What the shown plan does with a value, why, at what price and for whom: {…, "lines": as text}."""
    story = json.loads(session.value_story(value, values))
    shown = told.rungs[told.shown_rung()]
    given_up = next((each for each in shown["values"] if each["value"] == story["value"]), None)
    kept = {"stash": "kept", "rebuilt": "rebuilt", "blocked": "kept"}.get(story["fate"], story["fate"])
    found = {**story, "what": given_up["what"] if given_up else kept}
    if given_up:
        found["from"] = given_up["from"]
    return {**found, "lines": list(_explanation_lines(told, found, shown))}


def _explanation_lines(told, found, rung):
    where = f" by {found['node']}" if found["node"] else ""
    yield f"%{found['value']}: {found['what']} in the plan of {format_bytes(rung['peak_bytes'])}"
    yield f"  {format_bytes(found['bytes'])}, made{where}; to make it once more takes {found['ms']:.3f} ms"
    if found["what"] == "compressed":
        packing = f"packing and unpacking take {found['packing_ms']:.3f} ms"
        yield f"  waits for backward in {format_bytes(found['packed_bytes'])}; {packing}"
    elif found["what"] in ("recomputed", "rebuilt"):
        yield f"  made again from {', '.join(f'%{name}' for name in found['from']) or 'nothing'}"
    elif found["what"] != "kept instead":
        yield f"  {found['why']}"
    fates = ((each["peak_bytes"], v) for each in told.rungs for v in each["values"] if v["value"] == found["value"])
    if found["what"] == "kept" and (first := next(fates, None)):
        yield f"  {first[1]['what']} from the plan of {format_bytes(first[0])} on"
    if found["needed_by"]:
        yield f"  needed by {'; '.join(found['needed_by'])}"
