// The frontier: planned peak against predicted time of a step, a table of its rungs, and what the chosen rung does.
// `frontier` is what Session.frontier tells.

const SVG = "http://www.w3.org/2000/svg";

function svgNode(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function showFrontier(frontier, chosen) {
  const { rungs } = frontier, curve = document.getElementById("curve");
  const peaks = rungs.map((rung) => rung.peak_bytes), times = rungs.map((rung) => rung.predicted_ms);
  const [low, high] = [Math.min(...peaks), Math.max(...peaks)], [fast, slow] = [Math.min(...times), Math.max(...times)];
  const width = 640, height = 320, left = 80, right = 24, top = 26, bottom = 46;
  const x = (bytes) => left + (bytes - low) / (high - low || 1) * (width - left - right);
  const y = (ms) => height - bottom - (ms - fast) / (slow - fast || 1) * (height - top - bottom);
  curve.setAttribute("viewBox", `0 0 ${width} ${height}`);
  for (const bytes of ticks(low, high, 1024)) {
    curve.append(svgNode("line", { x1: x(bytes), x2: x(bytes), y1: top, y2: height - bottom, stroke: "#eaeef2" }));
    curve.append(svgNode("text", { x: x(bytes), y: height - bottom + 16, "text-anchor": "middle" }, bytesText(bytes)));
  }
  for (let i = 0; i <= 4; i++) {
    const ms = fast + (slow - fast) * i / 4;
    curve.append(svgNode("line", { x1: left, x2: width - right, y1: y(ms), y2: y(ms), stroke: "#eaeef2" }));
    curve.append(svgNode("text", { x: left - 8, y: y(ms) + 4, "text-anchor": "end" }, `${ms.toFixed(1)} ms`));
  }
  curve.append(svgNode("text", { x: (left + width) / 2, y: height - 8, "text-anchor": "middle" }, "planned peak"));
  const line = [...rungs].sort((a, b) => a.peak_bytes - b.peak_bytes);
  const points = line.map((rung) => `${x(rung.peak_bytes)},${y(rung.predicted_ms)}`).join(" ");
  curve.append(svgNode("polyline", { points, fill: "none", stroke: "#0072b2", "stroke-width": 2 }));
  const marks = new Map();
  const mark = (i, text) => marks.set(i, marks.has(i) ? `${marks.get(i)}, ${text}` : text);
  mark(peaks.indexOf(high), "default");
  mark(peaks.indexOf(low), "floor");
  if (frontier.knee !== undefined) mark(frontier.knee, "knee");
  const dots = rungs.map((rung, i) => {
    const text = marks.get(i);
    const dot = svgNode("circle", {
      cx: x(rung.peak_bytes), cy: y(rung.predicted_ms), r: text ? 6 : 4, class: "rung",
      fill: text ? "#d55e00" : "#0072b2",
    });
    dot.append(svgNode("title", {}, `${bytesText(rung.peak_bytes)}, ${rung.predicted_ms.toFixed(2)} ms`));
    dot.addEventListener("click", () => choose(i));
    curve.append(dot);
    if (!text) return dot;
    const atRight = x(rung.peak_bytes) > width - 120;
    curve.append(svgNode("text", {
      x: x(rung.peak_bytes) + (atRight ? -10 : 10), y: y(rung.predicted_ms) - 8, "text-anchor": atRight ? "end" : "start",
      "font-weight": 600,
    }, text));
    return dot;
  });

  const rows = document.getElementById("rungs");
  rungs.forEach((rung, i) => {
    const row = rows.insertRow();
    row.className = "choice";
    row.append(...[
      [marks.get(i) ?? "", "word"], [bytesText(rung.peak_bytes)], [rung.predicted_ms.toFixed(2)],
      [rung.extra_ms.toFixed(2)], [rung.bound_extra_ms?.toFixed(2) ?? ""],
      [i ? rungs[i - 1].ms_per_mib.toPrecision(2) : ""], // a rung tells what the next MiB costs
      [rung.measured_ms?.toFixed(2) ?? ""], [rung.values.length],
    ].map(([text, kind]) => cell(text, kind)));
    row.addEventListener("click", () => choose(i));
  });

  function choose(i) {
    [...rows.rows].forEach((row, place) => row.classList.toggle("chosen", place === i));
    dots.forEach((dot, place) => dot.classList.toggle("chosen", place === i));
    document.getElementById("rung_title").textContent = `What the plan of ${bytesText(rungs[i].peak_bytes)} does`;
    document.getElementById("values").replaceChildren(...rungs[i].values.map((value) => {
      const row = document.createElement("tr");
      row.append(cell(value.value, "name"), cell(value.what, "word"), cell(bytesText(value.bytes)),
        cell(value.ms.toFixed(3)), cell([value.module, value.line].filter(Boolean).join(", "), "word"),
        cell((value.from ?? []).join(", "), "name"));
      return row;
    }));
  }
  choose(chosen ?? frontier.knee ?? 0);
}

function cell(text, kind) {
  const made = document.createElement("td");
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}
