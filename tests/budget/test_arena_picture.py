"""What a picture says of an arena is what was planned: nothing overlaps, nothing lies above the peak, every buffer has
an origin; and its page and SVG show it."""

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

from lowtide.report import arena_svg, page

needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")


@pytest.fixture(scope="module", params=["gpt2", "gpt2_recomputed"])
def trained(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def picture(trained):
    return json.loads(trained.picture())


def test_no_two_buffers_share_bytes_at_a_time(picture):
    buffers = sorted(picture["buffers"], key=lambda each: each["first"])
    for i, one in enumerate(buffers):
        for other in buffers[i + 1 :]:
            if other["first"] > one["last"]:
                break
            apart = one["offset"] + one["bytes"] <= other["offset"] or other["offset"] + other["bytes"] <= one["offset"]
            assert apart, (one, other)


def test_the_bytes_are_those_of_the_plan(trained, picture):
    memory = trained.session.memory(trained.values)
    assert picture["peak_bytes"] == memory["planned_peak_bytes"]
    tops = [each["offset"] + each["bytes"] for each in picture["buffers"]]
    assert max(tops) == memory["planned_peak_bytes"]
    gradients = sum(each["bytes"] for each in picture["buffers"] if each["kind"] == "gradient")
    assert gradients == memory["gradient_bytes"]
    live = [
        sum(each["bytes"] for each in picture["buffers"] if each["first"] <= step <= each["last"])
        for step in range(len(picture["steps"]))
    ]
    told = [step["live_bytes"] for step in picture["steps"]]
    assert all(0 <= told[i] - live[i] < 64 * 8 for i in range(len(live)))  # scratch is padded
    assert memory["lower_bound_bytes"] <= max(told) <= memory["planned_peak_bytes"]


def test_every_buffer_says_who_made_it(picture):
    for buffer in picture["buffers"]:
        maker = picture["steps"][buffer["step"]]
        assert maker["what"] and (maker["module"] or maker["line"]), buffer
        assert buffer["first"] <= buffer["step"] <= buffer["last"]
    stashes = [each for each in picture["buffers"] if each["kind"] == "stash"]
    assert stashes and all(each["first"] < picture["forward_end"] <= each["last"] for each in stashes)
    assert {"transformer.h.0.mlp.c_fc", "transformer.h.1.attn"} <= {step["module"] for step in picture["steps"]}


def test_recompute_shows(gpt2, gpt2_recomputed):
    def recomputed(trained):
        return [each for each in json.loads(trained.picture())["buffers"] if each["made"] == "recomputed"]

    assert len(recomputed(gpt2_recomputed)) > len(recomputed(gpt2)) > 0  # a few are made again by default


def test_the_svg_draws_each_part_of_each_buffer(gpt2, gpt2_recomputed):
    pictures = [("before", gpt2.picture()), ("<after>", gpt2_recomputed.picture())]
    text = arena_svg(pictures)
    root = ElementTree.fromstring(text)
    paths = [each.get("d") for each in root.iter("{http://www.w3.org/2000/svg}path")]
    parts = sum(max(1, len(buffer["writes"])) for _, told in pictures for buffer in json.loads(told)["buffers"])
    assert sum(path.count("z") for path in paths) == parts
    words = " ".join(each.text for each in root.iter("{http://www.w3.org/2000/svg}text"))
    assert "before" in words and "<after>" in words and "stash: kept for backward" in words
    assert not re.search(r"(src|href)\s*=", text)


# What a user would do, and what is seen then, written where --dump-dom shows it.
_VISIT = """<script>
const canvas = document.getElementById("arena0"), seen = {}, box = canvas.getBoundingClientRect();
const tip = document.getElementById("tip"), {picture} = data.pictures[0];
function pixel(x, y) {
  const ratio = window.devicePixelRatio || 1;
  return Array.from(canvas.getContext("2d").getImageData(x * ratio, y * ratio, 1, 1).data);
}
function point(type, x, y, more) {
  const Event = type === "wheel" ? WheelEvent : PointerEvent;
  canvas.dispatchEvent(new Event(type, {clientX: box.left + x, clientY: box.top + y, bubbles: true, ...more}));
}
const largest = picture.buffers.reduce((a, b) => (b.last - b.first) * b.bytes > (a.last - a.first) * a.bytes ? b : a);
const width = box.width - 70 - 8, height = box.height - 8 - 34;
const x = 70 + (largest.last - 0.5) / picture.steps.length * width;
const y = 8 + (1 - (largest.offset + largest.bytes / 2) / (picture.peak_bytes * 1.02)) * height;
seen.largest = largest.name;
seen.drawn = Number(canvas.dataset.drawn);
seen.pixel = pixel(x, y);
seen.outside = pixel(70 + width / 2, 2);
seen.before = JSON.parse(canvas.dataset.view);
point("pointermove", x, y);
seen.tip = tip.textContent;
seen.shown = getComputedStyle(tip).display;
point("pointerleave", x, y);
seen.left = getComputedStyle(tip).display;
point("wheel", x, y, {deltaY: -600});
seen.zoomed = JSON.parse(canvas.dataset.view);
seen.drawn_zoomed = Number(canvas.dataset.drawn);
seen.pixel_zoomed = pixel(x, y);
point("pointerdown", x, y);
point("pointermove", x + 20, y);
point("pointerup", x + 20, y);
seen.dragged = JSON.parse(canvas.dataset.view);
point("dblclick", x, y);
seen.after = JSON.parse(canvas.dataset.view);
const search = document.getElementById("search");
search.value = "h.1.mlp";
search.dispatchEvent(new Event("input"));
seen.found = document.getElementById("found").textContent;
search.value = "";
search.dispatchEvent(new Event("input"));
const by = document.getElementById("by");
by.value = "module";
by.dispatchEvent(new Event("change"));
seen.legend = document.getElementById("legend").textContent;
seen.pixel_by_module = pixel(x, y);
const rungs = document.getElementById("rungs");
if (rungs) {
  seen.dots = document.querySelectorAll("circle.rung").length;
  seen.marks = Array.from(document.querySelectorAll("#curve text")).map((each) => each.textContent);
  seen.rows = Array.from(rungs.rows).map((row) => row.textContent);
  rungs.rows[rungs.rows.length - 1].click();
  seen.title = document.getElementById("rung_title").textContent;
  seen.values = document.getElementById("values").textContent;
}
const log = document.createElement("pre");
log.id = "seen";
log.textContent = JSON.stringify(seen);
document.body.append(log);
</script></body>"""


def visit(html, tmp_path):
    """What the browser has seen; its errors are shown where the visit fails."""
    path = tmp_path / "page.html"
    path.write_text(html.replace("</body>", _VISIT), encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--window-size=1400,1000", "--enable-logging=stderr", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


@needs_chromium
def test_the_page_in_a_browser(gpt2, gpt2_recomputed, tmp_path):
    html = page("lowtide plan: gpt2 </script>", [("before", gpt2.picture()), ("after", gpt2_recomputed.picture())])
    assert not re.search(r"(src|href)\s*=|https?://(?!www\.w3\.org/2000/svg)", html)
    seen = visit(html, tmp_path)
    buffers = json.loads(gpt2.picture())["buffers"]
    assert seen["drawn"] == len(buffers)
    colours = {"output": [240, 228, 66], "gradient": [213, 94, 0], "stash": [0, 114, 178]}
    (largest,) = (each for each in buffers if each["name"] == seen["largest"])
    expected = [*colours[largest["kind"]], 255]
    assert seen["pixel"] == expected and seen["outside"] != expected
    assert seen["shown"] == "block" and seen["left"] == "none"
    assert seen["tip"].startswith(largest["name"]) and "made by step" in seen["tip"] and ".py:" in seen["tip"]
    whole, zoomed = seen["before"], seen["zoomed"]
    assert zoomed["right"] - zoomed["left"] < 0.5 * (whole["right"] - whole["left"])
    assert zoomed["high"] - zoomed["low"] < 0.5 * (whole["high"] - whole["low"])
    assert seen["drawn_zoomed"] < seen["drawn"] and seen["pixel_zoomed"] == expected
    assert seen["dragged"]["left"] < zoomed["left"] and seen["after"] == whole
    assert re.fullmatch(r"[1-9]\d* found", seen["found"])
    assert "transformer.h.1" in seen["legend"] and seen["pixel_by_module"] != expected


def rung(peak, ms, **more):
    told = {"peak_bytes": peak, "predicted_ms": ms, "extra_ms": ms - 40, "bound_extra_ms": 0.9 * (ms - 40)}
    return {**told, "ms_per_mib": 0.25, "values": [], **more}


@needs_chromium
def test_the_frontier_in_a_browser(gpt2, tmp_path):
    value = {
        "value": "gelu_1",
        "what": "recomputed",
        "bytes": 3 << 20,
        "ms": 0.4,
        "module": "mlp",
        "line": "m.py:4",
    }
    frontier = {
        "dims": {"batch": 8},
        "default_peak_bytes": 600 << 20,
        "floor_bytes": 200 << 20,
        "knee": 1,
        "rungs": [
            rung(600 << 20, 40.0),
            rung(300 << 20, 42.0),
            rung(200 << 20, 55.5, values=[{**value, "from": ["addmm_1"], "needed_by": ["gelu_1_grad"]}]),
        ],
    }
    seen = visit(page("a plan", [("before", gpt2.picture())], frontier), tmp_path)
    assert seen["dots"] == 3 and {"default", "knee", "floor"} <= set(seen["marks"])
    assert len(seen["rows"]) == 3 and "300.0 MiB42.002.00" in seen["rows"][1]
    assert seen["title"] == "What the plan of 200.0 MiB does"
    assert seen["values"] == "gelu_1recomputed3.00 MiB0.400mlp, m.py:4addmm_1"
