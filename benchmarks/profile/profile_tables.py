"""The rows of a profile, summed up into tables: [(title, heading of the first column, [(name, sums)])]."""

import re

CONVOLUTIONS = ("convolution", "convolution_grad", "place_convolution", "place_convolution_grad")
PRODUCTS = ("matmul", "attention", "attention_grad", *CONVOLUTIONS)
# Steps that could go through their elements tile by tile, one after another.
BY_TILES = ("copy", "fill", "pointwise", "transcendental", "rotary", "random", "reduce", "softmax", "norm", "norm_grad")


def layer_of(module):
    """ "transformer.h.3" of "transformer.h.3.mlp.c_fc"; at most two names where no layer has a number."""
    parts = module.split(".")
    numbered = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    return ".".join(parts[: 2 if numbered is None else numbered + 1]) or "(model)"


def module_of(module):
    """ "transformer.h.*.mlp.c_fc": the same module of all layers."""
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", module) or "(model)"


def is_product(row):
    return row["class"] in PRODUCTS


def add_up(rows, key):
    """[(key, sums)], what takes longest first."""
    found = {}
    for row in rows:
        sums = found.setdefault(key(row), {"steps": 0, "ms": 0.0, "flops": 0.0, "bytes": 0.0})
        sums["steps"] += 1
        for name in ("ms", "flops", "bytes"):
            sums[name] += row[name]
    return sorted(found.items(), key=lambda item: -item[1]["ms"])


def handed_on(rows):
    """Of steps that hand what they make to one other such step alone: how many, the bytes written and read again, and
    the milliseconds that these would take if the two steps' times were nothing but traffic: tiles that stay in a
    cache save that at most."""
    by_step = {row["step"]: row for row in rows}
    sums = {"steps": 0, "ms": 0.0, "bytes": 0.0}
    for row in rows:
        for reader, amount in row["hands_on"]:
            pair = (row, by_step[reader])
            if not all(each["class"] in BY_TILES and each["bytes"] for each in pair):
                continue
            sums["steps"] += 1
            sums["bytes"] += 2 * amount
            sums["ms"] += sum(each["ms"] * min(1.0, amount / each["bytes"]) for each in pair)
    return sums


def tables(profile):
    """{"step_ms", "kernels_ms": sum of all steps of the plan, "products": share of it, "casts", "copies": sums,
    "handed_on", "tables"}."""
    rows = profile["rows"]
    total = sum(row["ms"] for row in rows)
    nothing = {"steps": 0, "ms": 0.0, "flops": 0.0, "bytes": 0.0}

    def sums_of(wanted):
        return next((sums for _, sums in add_up(filter(wanted, rows), lambda row: "")), nothing)

    return {
        "step_ms": profile["step_ms"],
        "kernels_ms": total,
        "products": sums_of(is_product)["ms"] / total if total else 0.0,
        "casts": sums_of(lambda row: row["op"] == "Cast"),
        "copies": sums_of(lambda row: row["op"] == "Copy"),
        "handed_on": handed_on(rows),
        "tables": [
            ("Parts", "part", add_up(rows, lambda row: "products" if is_product(row) else "everything else")),
            ("Half", "half", add_up(rows, lambda row: row["made"])),
            ("Ops", "op", add_up(rows, lambda row: f"{row['op']} {row['dtype']}".strip())),
            ("Kernels", "kernel", add_up(rows, lambda row: row["kernel"])),
            ("Modules", "module", add_up(rows, lambda row: module_of(row["module"]))),
            ("Layers", "layer", add_up(rows, lambda row: layer_of(row["module"]))),
            (
                "Steps",
                "step",
                add_up(rows, lambda row: f"{row['step']} {row['op']} {row['dtype']} {row['module']} {row['line']}"),
            ),
        ],
    }


def cells(sums, total):
    """share, ms, steps, GFLOP/s, GB/s, MB as text."""
    seconds = sums["ms"] / 1e3
    rates = [f"{sums[name] / seconds / 1e9:.1f}" if seconds and sums[name] else "" for name in ("flops", "bytes")]
    share = f"{sums['ms'] / total:.1%}" if total else ""
    return [share, f"{sums['ms']:.2f}", str(sums["steps"]), *rates, f"{sums['bytes'] / 1e6:.1f}"]


COLUMNS = ("share", "ms", "steps", "GFLOP/s", "GB/s", "MB")


def summary(shown):
    casts, copies, handed = shown["casts"], shown["copies"], shown["handed_on"]
    most = handed["ms"] / shown["kernels_ms"] if shown["kernels_ms"] else 0.0
    return (
        f"A step takes {shown['step_ms']:.1f} ms, its kernels {shown['kernels_ms']:.1f}; products "
        f"{shown['products']:.1%} of these. {casts['steps']} casts move {casts['bytes'] / 1e6:.1f} MB in "
        f"{casts['ms']:.1f} ms, {copies['steps']} copies {copies['bytes'] / 1e6:.1f} MB in {copies['ms']:.1f} ms. "
        f"{handed['steps']} steps without products hand what they make to one other such step alone, "
        f"{handed['bytes'] / 1e6:.1f} MB there and back: tiles would save {handed['ms']:.1f} ms at most ({most:.1%})."
    )


def text_of(shown, most_rows):
    """For a terminal: all but the single steps."""
    lines = [summary(shown)]
    for title, name, found in shown["tables"]:
        if title == "Steps":
            continue
        lines.append("")
        lines.append(f"{name:<56}" + "".join(f"{column:>10}" for column in COLUMNS))
        for each, sums in found[:most_rows]:
            lines.append(f"{each[-56:]:<56}" + "".join(f"{cell:>10}" for cell in cells(sums, shown["kernels_ms"])))
        if len(found) > most_rows:
            lines.append(f"and {len(found) - most_rows} more")
    return "\n".join(lines)
