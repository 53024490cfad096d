// Time × address pictures of arenas. `data.pictures` is a list of {title, picture}; picture is what
// src/report/arena_picture.h describes.

const COLOURS = {
  // Okabe and Ito's, which colour-blind people tell apart.
  stash: ["#0072b2", "stash: kept for backward"],
  temporary: ["#8ccdf0", "temporary of forward"],
  recomputed: ["#009e73", "recomputed"],
  backward: ["#e6a532", "temporary of backward"],
  gradient: ["#d55e00", "gradient of a parameter"],
  output: ["#f0e442", "output"],
  scratch: ["#b8bcc2", "scratch of a kernel or library"],
};
const LEFT = 70, BOTTOM = 34, TOP = 8, RIGHT = 8; // pixels around the picture

function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (bytes >= 1024 && power < 4) { bytes /= 1024; power += 1 }
  return `${power ? bytes.toFixed(bytes < 10 ? 2 : 1) : bytes} ${units[power]}`;
}

// What a buffer holds changes: each of its writes begins a part, whose maker gives the colour.
function partsOf(buffer, steps) {
  const writes = buffer.writes.length ? buffer.writes : [buffer.step];
  return writes.map((step, i) => ({
    step,
    first: i ? step : buffer.first,
    end: i + 1 < writes.length ? writes[i + 1] : buffer.last + 1,
    category: category(buffer, steps[step]),
  }));
}

function category(buffer, maker) {
  if (buffer.kind === "library") return "scratch";
  if (["gradient", "output", "scratch"].includes(buffer.kind)) return buffer.kind;
  if (maker.made === "recomputed") return "recomputed";
  if (maker.made === "gradient") return "backward";
  return buffer.kind;
}

// "transformer.h.3" of "transformer.h.3.mlp.c_fc": modules of a repeated layer belong together.
function groupOf(module) {
  const parts = module.split(".");
  const layer = parts.findIndex((part) => /^\d+$/.test(part));
  return parts.slice(0, layer >= 0 ? layer + 1 : 2).join(".") || "(model)";
}

// Viridis, in five stops: dark to light in the order of the groups' first steps.
function viridis(at) {
  const stops = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const place = at * (stops.length - 1), i = Math.min(Math.floor(place), stops.length - 2), part = place - i;
  const mix = (k) => Math.round(stops[i][k] + (stops[i + 1][k] - stops[i][k]) * part);
  return `rgb(${mix(0)}, ${mix(1)}, ${mix(2)})`;
}

function groupColours(pictures) {
  const groups = [];
  for (const { picture } of pictures)
    for (const step of picture.steps) {
      const group = groupOf(step.module);
      if (!groups.includes(group)) groups.push(group);
    }
  return new Map(groups.map((group, i) => [group, viridis(groups.length > 1 ? i / (groups.length - 1) : 0.5)]));
}

function origin(step) {
  const where = [step.module, step.line].filter(Boolean).join(", ");
  return where ? `${step.what} (${where})` : step.what;
}

class ArenaView {
  constructor(canvas, picture, highest, settings) {
    Object.assign(this, { canvas, picture, highest, settings });
    this.parts = picture.buffers.map((buffer) => partsOf(buffer, picture.steps));
    this.hovered = -1;
    this.reset();
    canvas.addEventListener("wheel", (event) => this.zoom(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.grab(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", () => { this.grabbed = null });
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("dblclick", () => { this.reset(); this.draw() });
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  reset() {
    this.view = { left: 0, right: this.picture.steps.length, low: 0, high: this.highest * 1.02 };
  }

  // ---- from steps and bytes to pixels and back

  get width() { return this.canvas.clientWidth - LEFT - RIGHT }
  get height() { return this.canvas.clientHeight - TOP - BOTTOM }
  x(step) { return LEFT + (step - this.view.left) / (this.view.right - this.view.left) * this.width }
  y(bytes) { return TOP + (this.view.high - bytes) / (this.view.high - this.view.low) * this.height }
  step(x) { return this.view.left + (x - LEFT) / this.width * (this.view.right - this.view.left) }
  bytes(y) { return this.view.high - (y - TOP) / this.height * (this.view.high - this.view.low) }

  // ---- what users do

  zoom(event) {
    event.preventDefault();
    const factor = Math.exp(event.deltaY * 0.0015), v = this.view;
    const step = this.step(event.offsetX), bytes = this.bytes(event.offsetY);
    if (!event.altKey) [v.left, v.right] = [step + (v.left - step) * factor, step + (v.right - step) * factor];
    if (!event.shiftKey) [v.low, v.high] = [bytes + (v.low - bytes) * factor, bytes + (v.high - bytes) * factor];
    this.keepInside();
    this.draw();
  }

  keepInside() {
    const v = this.view, steps = this.picture.steps.length, high = this.highest * 1.02;
    const fit = (low, end, most, least) => {
      const span = Math.min(most, Math.max(least, end - low)), start = Math.min(Math.max(0, low), most - span);
      return [start, start + span];
    };
    [v.left, v.right] = fit(v.left, v.right, steps, Math.min(2, steps));
    [v.low, v.high] = fit(v.low, v.high, high, Math.min(256, high));
  }

  grab(event) {
    this.grabbed = { x: event.offsetX, y: event.offsetY, view: { ...this.view } };
    this.canvas.setPointerCapture?.(event.pointerId);
  }

  move(event) {
    if (this.grabbed) {
      const { x, y, view } = this.grabbed;
      const steps = (event.offsetX - x) / this.width * (view.right - view.left);
      const bytes = (event.offsetY - y) / this.height * (view.high - view.low);
      this.view = { left: view.left - steps, right: view.right - steps, low: view.low + bytes, high: view.high + bytes };
      this.keepInside();
      this.draw();
    }
    const found = this.find(event.offsetX, event.offsetY);
    if (found !== this.hovered) { this.hovered = found; this.draw() }
    showTip(found < 0 ? null : this.tell(found, this.step(event.offsetX)), event);
  }

  leave() {
    this.hovered = -1;
    showTip(null);
    this.draw();
  }

  find(x, y) {
    if (x < LEFT || y > TOP + this.height) return -1;
    const step = this.step(x), bytes = this.bytes(y);
    return this.picture.buffers.findIndex((buffer) =>
      buffer.first <= step && step < buffer.last + 1 && buffer.offset <= bytes && bytes < buffer.offset + buffer.bytes);
  }

  // Lines about a buffer as it is at a step.
  tell(index, step) {
    const { buffers, steps } = this.picture, buffer = buffers[index];
    const part = this.parts[index].find((each) => step < each.end) ?? this.parts[index].at(-1);
    const readers = buffer.reads.filter((read) => read >= part.step && read <= part.end && read !== part.step);
    const lines = [
      `${COLOURS[part.category][1]}; ${bytesText(buffer.bytes)} at ${bytesText(buffer.offset)}`,
      `steps ${buffer.first} to ${buffer.last} of ${steps.length}`,
      `made by step ${part.step}: ${origin(steps[part.step])}`,
      ...readers.slice(0, 5).map((read) => `read by step ${read}: ${origin(steps[read])}`),
    ];
    if (readers.length > 5) lines.push(`and by ${readers.length - 5} more steps`);
    return { name: buffer.name, lines };
  }

  // ---- drawing

  matches(index) {
    const words = this.settings.search;
    if (!words) return true;
    const buffer = this.picture.buffers[index];
    const text = `${buffer.name} ${buffer.kind} ${buffer.made} ${origin(this.picture.steps[buffer.step])}`;
    return words.split(/\s+/).every((word) => text.toLowerCase().includes(word));
  }

  draw() {
    const { canvas, picture, view } = this, ratio = window.devicePixelRatio || 1;
    const context = canvas.getContext("2d");
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = canvas.clientHeight * ratio;
    context.scale(ratio, ratio);
    context.font = "11px system-ui, sans-serif";
    context.save();
    context.beginPath();
    context.rect(LEFT, TOP, this.width, this.height);
    context.clip();
    let drawn = 0, found = 0;
    picture.buffers.forEach((buffer, i) => {
      const matches = this.matches(i);
      found += matches;
      const low = this.y(buffer.offset), high = this.y(buffer.offset + buffer.bytes);
      if (buffer.last + 1 < view.left || buffer.first > view.right || low < TOP || high > TOP + this.height) return;
      drawn += 1;
      context.globalAlpha = matches ? 1 : 0.12;
      for (const part of this.parts[i]) {
        const step = picture.steps[part.step];
        context.fillStyle = this.settings.byModule
          ? this.settings.groups.get(groupOf(step.module)) : COLOURS[part.category][0];
        context.fillRect(this.x(part.first), high, this.x(part.end) - this.x(part.first), low - high);
      }
      this.outline(context, buffer, low, high, i === this.hovered);
    });
    context.globalAlpha = 1;
    this.drawLive(context);
    context.restore();
    this.drawAxes(context);
    canvas.dataset.drawn = drawn;
    canvas.dataset.found = found;
    canvas.dataset.view = JSON.stringify(view);
  }

  outline(context, buffer, low, high, hovered) {
    const left = this.x(buffer.first), width = this.x(buffer.last + 1) - left, height = low - high;
    if (hovered || (width > 4 && height > 4)) {
      context.strokeStyle = hovered ? "#000" : "#0004";
      context.lineWidth = hovered ? 2 : 0.5;
      context.strokeRect(left, high, width, height);
    }
    const shown = Math.min(left + width, LEFT + this.width) - Math.max(left, LEFT);
    if (shown < 40 || height < 13) return;
    context.save();
    context.beginPath();
    context.rect(Math.max(left, LEFT), high, shown, height);
    context.clip();
    context.fillStyle = this.settings.byModule || buffer.kind === "stash" ? "#fff" : "#000";
    context.fillText(buffer.name, Math.max(left, LEFT) + 3, Math.min(low, TOP + this.height) - 4);
    context.restore();
  }

  // Live bytes as a line over the rectangles: what stands above it in an arena is room that the packing could not use.
  drawLive(context) {
    context.beginPath();
    this.picture.steps.forEach((step, i) => {
      context.lineTo(this.x(i), this.y(step.live_bytes));
      context.lineTo(this.x(i + 1), this.y(step.live_bytes));
    });
    context.strokeStyle = "#000";
    context.lineWidth = 1.25;
    context.stroke();
    this.rule(context, this.y(this.picture.peak_bytes), "#a40000", `peak ${bytesText(this.picture.peak_bytes)}`);
    const x = this.x(this.picture.forward_end);
    context.setLineDash([2, 3]);
    context.strokeStyle = "#000";
    context.beginPath();
    context.moveTo(x, TOP);
    context.lineTo(x, TOP + this.height);
    context.stroke();
    context.setLineDash([]);
  }

  rule(context, y, colour, text) {
    context.strokeStyle = context.fillStyle = colour;
    context.setLineDash([6, 3]);
    context.beginPath();
    context.moveTo(LEFT, y);
    context.lineTo(LEFT + this.width, y);
    context.stroke();
    context.setLineDash([]);
    context.fillText(text, LEFT + 6, y > TOP + 16 ? y - 4 : y + 12);
  }

  drawAxes(context) {
    const { view } = this, bottom = TOP + this.height;
    context.fillStyle = context.strokeStyle = "#1b1f24";
    context.lineWidth = 1;
    context.strokeRect(LEFT, TOP, this.width, this.height);
    context.textAlign = "right";
    for (const bytes of ticks(view.low, view.high, 1024)) {
      context.fillText(bytesText(bytes).replace(/\.0+ /, " "), LEFT - 5, this.y(bytes) + 4);
      context.fillRect(LEFT - 3, this.y(bytes), 3, 1);
    }
    context.textAlign = "center";
    for (const step of ticks(view.left, view.right, 10)) {
      context.fillText(step, this.x(step), bottom + 14);
      context.fillRect(this.x(step), bottom, 1, 3);
    }
    const middle = Math.min(Math.max(this.x(this.picture.forward_end), LEFT), LEFT + this.width);
    context.fillStyle = "#57606a";
    if (middle - LEFT > 60) context.fillText("forward", (LEFT + middle) / 2, bottom + 28);
    if (LEFT + this.width - middle > 60) context.fillText("backward", (middle + LEFT + this.width) / 2, bottom + 28);
    context.textAlign = "left";
  }
}

// Round numbers between two, about six of them. `base` 1024: of bytes.
function ticks(low, high, base) {
  const most = (high - low) / 6;
  let unit = 1;
  while (unit * base <= most) unit *= base;
  const round = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1024].find((each) => unit * each >= most) ?? 1024;
  const result = [];
  for (let at = Math.ceil(low / (unit * round)); at * unit * round <= high; at++) result.push(at * unit * round);
  return result;
}

function showTip(told, event) {
  const tip = document.getElementById("tip");
  tip.style.display = told ? "block" : "none";
  tip.replaceChildren();
  if (!told) return;
  const name = document.createElement("b");
  name.textContent = told.name;
  tip.append(name, ...told.lines.map((line) => {
    const row = document.createElement("div");
    row.textContent = line;
    return row;
  }));
  const left = event.clientX + 16, top = event.clientY + 16;
  tip.style.left = `${Math.max(4, Math.min(left, window.innerWidth - tip.offsetWidth - 12))}px`;
  tip.style.top = `${top + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 12 : top}px`;
}

function fillLegend(settings) {
  const entries = settings.byModule ? [...settings.groups] : Object.values(COLOURS).map(([colour, text]) => [text, colour]);
  document.getElementById("legend").replaceChildren(...entries.map(([text, colour]) => {
    const entry = document.createElement("span"), box = document.createElement("i");
    box.style.background = colour;
    entry.append(box, text);
    return entry;
  }));
}

function showArenas(pictures) {
  const settings = { byModule: false, search: "", groups: groupColours(pictures) };
  const highest = Math.max(...pictures.map(({ picture }) => picture.peak_bytes));
  const views = pictures.map(({ picture }, i) =>
    new ArenaView(document.getElementById(`arena${i}`), picture, highest, settings));
  const drawAll = () => {
    views.forEach((view) => view.draw());
    const found = views.reduce((sum, view) => sum + Number(view.canvas.dataset.found), 0);
    document.getElementById("found").textContent = settings.search ? `${found} found` : "";
  };
  document.getElementById("search").addEventListener("input", (event) => {
    settings.search = event.target.value.trim().toLowerCase();
    drawAll();
  });
  document.getElementById("by").addEventListener("change", (event) => {
    settings.byModule = event.target.value === "module";
    fillLegend(settings);
    drawAll();
  });
  document.getElementById("reset").addEventListener("click", () => {
    views.forEach((view) => view.reset());
    drawAll();
  });
  fillLegend(settings);
  drawAll();
}
