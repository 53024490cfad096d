"""The same picture as a file that a README shows: arenas side by side, to one scale."""

import html
import json
import math

# Okabe and Ito's colours, as in arena.js.
COLOURS = {
    "temporary": ("#8ccdf0", "temporary of forward"),
    "stash": ("#0072b2", "stash: kept for backward"),
    "recomputed": ("#009e73", "recomputed"),
    "backward": ("#e6a532", "temporary of backward"),
    "gradient": ("#d55e00", "gradient"),
    "output": ("#f0e442", "output"),
    "scratch": ("#b8bcc2", "scratch"),
}
_STYLE = "text{font:13px system-ui,sans-serif;fill:#1b1f24}.t{font-weight:600;font-size:15px}.s{fill:#57606a}"
_PANEL, _HEIGHT, _LEFT, _TOP, _GAP, _BOTTOM = 520, 340, 72, 54, 46, 76


def arena_svg(pictures):
    """`pictures`: [(title, what Session.arena_picture tells, as JSON text)]."""
    shown = [(title, json.loads(text)) for title, text in pictures]
    highest = max(picture["peak_bytes"] for _, picture in shown)
    width = _LEFT + len(shown) * (_PANEL + _GAP)
    height = _TOP + _HEIGHT + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<style>{_STYLE}</style><rect width="{width}" height="{height}" fill="#fff"/>',
        *_addresses(highest, width),
    ]
    for number, (title, picture) in enumerate(shown):
        parts += _panel(title, picture, highest, _LEFT + number * (_PANEL + _GAP))
    parts += _legend({name for _, picture in shown for name in _rectangles(picture)}, height - 18)
    return "\n".join([*parts, "</svg>\n"])


def _panel(title, picture, highest, left):
    steps, bottom = len(picture["steps"]), _TOP + _HEIGHT
    across, up = _PANEL / steps, _HEIGHT / highest
    for name, rectangles in _rectangles(picture).items():
        # A border would hide what is hardly higher than it.
        for border, are_high in (("none", False), ("#fff", True)):
            path = "".join(
                f"M{left + first * across:.1f} {bottom - (offset + size) * up:.2f}"
                f"h{(end - first) * across:.1f}v{size * up:.2f}h{-(end - first) * across:.1f}z"
                for first, end, offset, size in rectangles
                if (size * up > 3) == are_high
            )
            yield f'<path d="{path}" fill="{COLOURS[name][0]}" stroke="{border}" stroke-width=".5"/>'
    points = " ".join(
        f"{left + at * across:.1f},{bottom - step['live_bytes'] * up:.1f}"
        for i, step in enumerate(picture["steps"])
        for at in (i, i + 1)
    )
    yield f'<polyline points="{points}" fill="none" stroke="#000"/>'
    peak, middle = bottom - picture["peak_bytes"] * up, left + picture["forward_end"] * across
    yield f'<path d="M{left} {peak:.1f}h{_PANEL}" stroke="#a40000" stroke-dasharray="6 3" fill="none"/>'
    yield f'<path d="M{middle:.1f} {_TOP}V{bottom}" stroke="#000" stroke-dasharray="2 3" fill="none"/>'
    yield f'<path d="M{left} {_TOP}V{bottom}h{_PANEL}" stroke="#1b1f24" fill="none"/>'
    yield f'<text class="t" x="{left}" y="{_TOP - 30}">{html.escape(title)}</text>'
    yield f'<text class="s" x="{left}" y="{_TOP - 12}">peak {picture["peak_bytes"] / 2**20:,.1f} MiB</text>'
    for text, at in (("forward", (left + middle) / 2), ("backward", (middle + left + _PANEL) / 2)):
        yield f'<text class="s" x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{text}</text>'


def _rectangles(picture):
    """{colour: [(first, end, offset, bytes)]}: what a buffer holds changes at each of its writes."""
    found, steps = {}, picture["steps"]
    for buffer in picture["buffers"]:
        writes = buffer["writes"] or [buffer["step"]]
        for step, end in zip(writes, [*writes[1:], buffer["last"] + 1], strict=True):
            first = step if step != writes[0] else buffer["first"]
            name = _colour_of(buffer["kind"], steps[step]["made"])
            found.setdefault(name, []).append((first, end, buffer["offset"], buffer["bytes"]))
    return {name: found[name] for name in COLOURS if name in found}


def _colour_of(kind, made):
    if kind == "library":
        return "scratch"
    if kind in ("gradient", "output", "scratch"):
        return kind
    return {"recomputed": "recomputed", "gradient": "backward"}.get(made, kind)


def _addresses(highest, width):
    """Lines at round addresses."""
    unit = 10 ** math.floor(math.log10(highest / 2**20)) * 2**20
    unit *= next(part for part in (0.1, 0.2, 0.5, 1, 2) if highest / (unit * part) <= 6 or part == 2)
    for number in range(int(highest / unit) + 1):
        y = _TOP + _HEIGHT * (1 - number * unit / highest)
        text = f"{number * unit / 2**20:,.4g} MiB"
        yield f'<path d="M{_LEFT} {y:.1f}H{width - _GAP}" stroke="#eaeef2"/>'
        yield f'<text class="s" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'


def _legend(names, y):
    x = _LEFT
    for name, (colour, text) in COLOURS.items():
        if name in names:
            yield f'<rect x="{x}" y="{y - 11}" width="13" height="13" fill="{colour}"/>'
            yield f'<text x="{x + 18}" y="{y}">{text}</text>'
            x += 38 + 7 * len(text)
