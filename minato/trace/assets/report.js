"use strict";
// Draws the pictures of a report from the thinned data in the page. No libraries, nothing from the network.

const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["#4c78a8", "#f58518", "#54a24b", "#b279a2", "#72b7b2", "#d4a72c", "#9d755d", "#ff9da6", "#8c7bd1", "#a3b35c"];
const KIND = { RUN: 4, COLLATION: 5, WAIT: 6, TRANSFER: 8, MARK: 16 };
const KIND_NAME = { 4: "samples", 5: "collation", 6: "wait for batch", 8: "transfer", 16: "mark" };
const opColour = (number) => COLOURS[number % COLOURS.length];
const seconds = data.wall_us / 1e6;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// ---- words ---------------------------------------------------------------------------------------------------------

const trimmed = (value, digits = 3) => String(+value.toPrecision(digits));
function time(us) {
  if (us >= 1e6) return trimmed(us / 1e6) + " s";
  return us >= 1e3 ? trimmed(us / 1e3) + " ms" : trimmed(us) + " µs";
}
const ms = (value) => time(value * 1000);
function count(value) {
  if (value >= 1e6) return trimmed(value / 1e6) + "M";
  return value >= 1e4 ? trimmed(value / 1e3) + "k" : trimmed(value);
}

const tip = document.body.appendChild(document.createElement("div"));
tip.className = "tip";
function tell(event, text) {
  tip.textContent = text;
  tip.style.display = text ? "block" : "none";
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  tip.style.left = left + "px";
  tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
}

// ---- scales and axes -----------------------------------------------------------------------------------------------

const linear = (from, to, start, end) => (value) => start + ((value - from) / (to - from || 1)) * (end - start);
function logarithmic(from, to, start, end) {
  const [low, high] = [Math.log10(from), Math.log10(to)];
  return (value) => start + ((Math.log10(Math.max(value, from)) - low) / (high - low || 1)) * (end - start);
}
function ticks(from, to, wanted) {
  const raw = (to - from) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
  const found = [];
  for (let n = Math.ceil(from / step - 1e-9); n * step <= to + step * 1e-6; n++) found.push(n * step);
  return found;
}
function decades(from, to) {
  const found = [];
  for (let n = Math.ceil(Math.log10(from) - 1e-9); n <= Math.log10(to) + 1e-9; n++) found.push(10 ** n);
  return found;
}

function svg(name, attributes = {}, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// A plot of fixed inner size; its SVG scales with the page.
function plot(id, { height = 190, left = 52, bottom = 26, right = 12 } = {}) {
  const place = document.querySelector(`#${id} .plot`);
  place.textContent = "";
  const width = Math.max(320, place.clientWidth);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height });
  place.append(root);
  return { place, root, x0: left, x1: width - right, y0: height - bottom, y1: 10, add: (...node) => root.append(svg(...node)) };
}
function axes(p, xTicks, x, xText, yTicks, y, yText) {
  for (const value of yTicks) {
    p.add("line", { class: "grid", x1: p.x0, x2: p.x1, y1: y(value), y2: y(value) });
    p.add("text", { x: p.x0 - 7, y: y(value) + 4, "text-anchor": "end" }, yText(value));
  }
  p.add("line", { class: "axis", x1: p.x0, x2: p.x1, y1: p.y0, y2: p.y0 });
  for (const value of xTicks) p.add("text", { x: x(value), y: p.y0 + 17, "text-anchor": "middle" }, xText(value));
}
const timeAxis = (p) => {
  const x = linear(0, seconds, p.x0, p.x1);
  return [ticks(0, seconds, 6).filter((value) => value <= seconds), x, (value) => trimmed(value, 6) + " s"];
};
const middle = (number, of) => ((number + 0.5) / of) * seconds;

function legend(place, entries) {
  const box = place.appendChild(document.createElement("div"));
  box.className = "legend";
  for (const [colour, name] of entries) {
    const item = box.appendChild(document.createElement("span"));
    const swatch = item.appendChild(document.createElement("i"));
    swatch.style.background = colour;
    item.append(name);
  }
}
const empty = (id) => document.getElementById(id).classList.add("empty");
const epochs = (p, x) => {
  for (const at of data.epochs.slice(1)) p.add("line", { class: "axis", x1: x(at / 1e6), x2: x(at / 1e6), y1: p.y1, y2: p.y0 });
};
const curve = (values, x, y) => values.map((v, n) => `${n ? "L" : "M"}${x(middle(n, values.length)).toFixed(1)},${y(v).toFixed(1)}`).join("");
function hover(p, x, text) {
  p.root.addEventListener("mousemove", (event) => {
    const box = p.root.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * p.root.viewBox.baseVal.width;
    tell(event, at >= p.x0 && at <= p.x1 ? text((at - p.x0) / (p.x1 - p.x0)) : "");
  });
  p.root.addEventListener("mouseleave", (event) => tell(event, ""));
}

// ---- curves over time ----------------------------------------------------------------------------------------------

function drawActivity() {
  const names = Object.keys(data.activity);
  if (!names.length) return empty("activity");
  const p = plot("activity");
  const parts = data.activity[names[0]].length;
  const sums = Array.from({ length: parts }, (_, n) => names.reduce((sum, name) => sum + data.activity[name][n], 0));
  const top = Math.max(1, ...sums);
  const y = linear(0, top * 1.05, p.y0, p.y1);
  const axis = timeAxis(p);
  axes(p, ...axis, ticks(0, top, 4), y, count);
  const under = new Array(parts).fill(0);
  const colours = names.map((name) => (name === "other" ? css("--mark") : opColour(data.ops.indexOf(name))));
  names.forEach((name, number) => {
    const over = under.map((value, n) => value + data.activity[name][n]);
    const back = under.map((v, n) => `L${axis[1](middle(n, parts)).toFixed(1)},${y(v).toFixed(1)}`).reverse().join("");
    p.add("path", { d: curve(over, axis[1], y) + back + "Z", fill: colours[number], "fill-opacity": 0.85 });
    over.forEach((value, n) => { under[n] = value; });
  });
  epochs(p, axis[1]);
  hover(p, axis[1], (share) => {
    const n = Math.min(parts - 1, Math.floor(share * parts));
    const lines = names.filter((name) => data.activity[name][n] > 0.005).map((name) => `${name}: ${trimmed(data.activity[name][n], 2)}`);
    return `${trimmed(share * seconds)} s\n${lines.join("\n")}`;
  });
  legend(p.place, names.map((name, n) => [colours[n], name]));
}

function drawThroughput() {
  const p = plot("throughput");
  const top = Math.max(1, ...data.throughput);
  const y = linear(0, top * 1.05, p.y0, p.y1);
  const axis = timeAxis(p);
  axes(p, ...axis, ticks(0, top, 4), y, count);
  const line = curve(data.throughput, axis[1], y);
  const parts = data.throughput.length;
  p.add("path", { d: `${line}L${axis[1](middle(parts - 1, parts))},${p.y0}L${axis[1](middle(0, parts))},${p.y0}Z`, fill: css("--accent"), "fill-opacity": 0.18 });
  p.add("path", { d: line, fill: "none", stroke: css("--accent"), "stroke-width": 1.5 });
  epochs(p, axis[1]);
  hover(p, axis[1], (share) => `${trimmed(share * seconds)} s\n${count(data.throughput[Math.min(parts - 1, Math.floor(share * parts))])} samples/s`);
}

function drawLevels(id, names, colours) {
  const known = names.filter((name) => data.curves[name] && (name === "ready" || Math.max(...data.curves[name].high) > 0));
  if (!known.length) return empty(id);
  const p = plot(id);
  const top = Math.max(1, ...known.flatMap((name) => data.curves[name].high));
  const y = linear(0, top * 1.08, p.y0, p.y1);
  const axis = timeAxis(p);
  axes(p, ...axis, ticks(0, top, 4).filter((value) => value % 1 === 0), y, count);
  for (const name of known) {
    const { mean, low, high } = data.curves[name];
    const colour = colours[names.indexOf(name)];
    const back = low.map((v, n) => `L${axis[1](middle(n, low.length)).toFixed(1)},${y(v).toFixed(1)}`).reverse().join("");
    p.add("path", { d: curve(high, axis[1], y) + back + "Z", fill: colour, "fill-opacity": 0.16 });
    p.add("path", { d: curve(mean, axis[1], y), fill: "none", stroke: colour, "stroke-width": 1.6 });
  }
  epochs(p, axis[1]);
  hover(p, axis[1], (share) => {
    const lines = known.map((name) => {
      const { mean, low, high } = data.curves[name];
      const n = Math.min(mean.length - 1, Math.floor(share * mean.length));
      return `${name.replace("_", " ")}: ${trimmed(mean[n], 3)} (${low[n]} to ${high[n]})`;
    });
    return `${trimmed(share * seconds)} s\n${lines.join("\n")}`;
  });
  if (names.length > 1) legend(p.place, known.map((name) => [colours[names.indexOf(name)], name.replace("_", " ")]));
}

// ---- waits, delays, percentiles ------------------------------------------------------------------------------------

function drawScatter(id, column, limit) {
  const points = data.waits.filter((point) => point[column] >= 0);
  if (!points.length) return empty(id);
  const p = plot(id);
  const ids = points.map((point) => point[0]);
  const values = points.map((point) => point[column]);
  const low = Math.max(0.001, Math.min(1, ...values.filter((value) => value > 0)) / 2);
  const high = Math.max(1, limit, ...values) * 1.8;
  const x = linear(Math.min(...ids), Math.max(...ids), p.x0 + 4, p.x1 - 4);
  const y = logarithmic(low, high, p.y0, p.y1);
  const marks = ticks(Math.min(...ids), Math.max(...ids), 6).filter((value) => value % 1 === 0);
  axes(p, marks, x, count, decades(low, high), y, ms);
  p.add("line", { class: "limit", x1: p.x0, x2: p.x1, y1: y(limit), y2: y(limit) });
  p.add("text", { x: p.x1, y: y(limit) - 4, "text-anchor": "end" }, ms(limit));
  const dots = svg("g", {});
  for (const point of points) {
    const fill = column === 1 && !point[3] ? css("--wait") : css("--accent");
    dots.append(svg("circle", { cx: x(point[0]).toFixed(1), cy: y(point[column]).toFixed(1), r: 2.1, fill, "fill-opacity": 0.6 }));
  }
  p.root.append(dots);
  p.root.addEventListener("mousemove", (event) => {
    const box = p.root.getBoundingClientRect();
    const scale = p.root.viewBox.baseVal.width / box.width;
    const [px, py] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    let best = null, nearest = 144;
    for (const point of points) {
      const away = (x(point[0]) - px) ** 2 + (y(point[column]) - py) ** 2;
      if (away < nearest) [best, nearest] = [point, away];
    }
    tell(event, best ? `batch ${best[0]}\nwaited for ${ms(best[1])}${best[3] ? ", was ready" : ""}\n${best[2] >= 0 ? "lay ready " + ms(best[2]) : ""}` : "");
  });
  p.root.addEventListener("mouseleave", (event) => tell(event, ""));
  p.add("text", { x: (p.x0 + p.x1) / 2, y: p.y0 + 17, "text-anchor": "middle" }, marks.length > 1 ? "" : "batch");
}

function drawQuantiles() {
  const names = Object.keys(data.quantiles).filter((name) => data.quantiles[name].length);
  if (!names.length) return empty("quantiles");
  const p = plot("quantiles");
  const all = names.flatMap((name) => data.quantiles[name]);
  const [low, high] = [Math.max(0.001, Math.min(...all.filter((v) => v > 0), 1) * 0.7), Math.max(1, ...all) * 1.3];
  const x = linear(0, 100, p.x0, p.x1);
  const y = logarithmic(low, high, p.y0, p.y1);
  axes(p, [0, 25, 50, 75, 90, 100], x, (value) => "P" + value, decades(low, high), y, ms);
  const colours = { preprocessing: COLOURS[0], wait: css("--wait"), delay: COLOURS[2] };
  for (const name of names) {
    const values = data.quantiles[name];
    const d = values.map((v, n) => `${n ? "L" : "M"}${x((100 * n) / (values.length - 1)).toFixed(1)},${y(v).toFixed(1)}`).join("");
    p.add("path", { d, fill: "none", stroke: colours[name], "stroke-width": 1.8 });
  }
  hover(p, x, (share) => {
    const at = (name) => data.quantiles[name][Math.round(share * (data.quantiles[name].length - 1))];
    return `P${Math.round(share * 100)}\n${names.map((name) => `${name}: ${ms(at(name))}`).join("\n")}`;
  });
  legend(p.place, names.map((name) => [colours[name], { preprocessing: "to preprocess a batch", wait: "waits", delay: "delays" }[name]]));
}

function drawBoxes() {
  const boxes = data.boxes.map((box, number) => [number, ...box]).slice(0, 20);
  if (!boxes.length) return empty("boxes");
  const row = 27;
  const longest = Math.max(...boxes.map(([n]) => data.ops[n].length));
  const p = plot("boxes", { height: boxes.length * row + 40, left: Math.min(190, 26 + longest * 7) });
  const low = Math.max(1e-4, Math.min(...boxes.map((box) => box[1])) * 0.8);
  const high = Math.max(...boxes.map((box) => box[6])) * 1.2;
  const x = logarithmic(low, high, p.x0, p.x1);
  const marks = decades(low, high);
  for (const value of marks.length ? marks : [low, high]) {
    p.add("line", { class: "grid", x1: x(value), x2: x(value), y1: p.y1 - 6, y2: p.y0 });
    p.add("text", { x: x(value), y: p.y0 + 17, "text-anchor": "middle" }, ms(value));
  }
  boxes.forEach(([number, p1, p25, p50, p75, p99, most, calls], place) => {
    const y = p.y1 + place * row + row / 2 - 2;
    const group = svg("g", {});
    const add = (...node) => group.append(svg(...node));
    const name = data.ops[number];
    add("rect", { x: 0, width: p.x1, y: y - row / 2, height: row, fill: "transparent" });
    add("text", { class: "name", x: p.x0 - 10, y: y + 4, "text-anchor": "end" }, name.length > 24 ? name.slice(0, 23) + "…" : name);
    add("line", { x1: x(p1), x2: x(p99), y1: y, y2: y, stroke: opColour(number), "stroke-width": 1.5 });
    for (const end of [p1, p99]) add("line", { x1: x(end), x2: x(end), y1: y - 4, y2: y + 4, stroke: opColour(number), "stroke-width": 1.5 });
    const wide = x(p75) - x(p25);
    add("rect", { x: x(p25) - (wide < 4 ? 2 : 0), width: Math.max(4, wide), y: y - 8, height: 16, rx: 2, fill: opColour(number), "fill-opacity": 0.8 });
    if (wide > 8) add("line", { x1: x(p50), x2: x(p50), y1: y - 8, y2: y + 8, stroke: css("--card"), "stroke-width": 2 });
    add("circle", { cx: x(most), cy: y, r: 2.5, fill: opColour(number) });
    group.addEventListener("mousemove", (event) => tell(event, `${name}, ${count(calls)} calls\nmedian ${ms(p50)}, P25 ${ms(p25)}, P75 ${ms(p75)}\nP1 ${ms(p1)}, P99 ${ms(p99)}, longest ${ms(most)}`));
    group.addEventListener("mouseleave", (event) => tell(event, ""));
    p.root.append(group);
  });
}

// ---- timeline ------------------------------------------------------------------------------------------------------

const BAR = 14, STRIP = 8, GAP = 9, AXIS = 22;
function timeline() {
  const place = document.querySelector("#timeline .plot");
  place.textContent = "";
  const whole = data.wall_us;
  let view = [0, whole];
  const tools = document.createElement("div");
  tools.className = "tools";
  document.querySelector("#timeline h3").before(tools);
  for (const [sign, factor] of [["+", 0.5], ["−", 2], ["all", Infinity]]) {
    const button = tools.appendChild(document.createElement("button"));
    button.textContent = sign;
    button.addEventListener("click", () => zoom(factor, (view[0] + view[1]) / 2));
  }
  const grid = place.appendChild(document.createElement("div"));
  grid.className = "lanes";
  const scroller = grid.appendChild(document.createElement("div"));
  scroller.className = "scroller";
  const names = scroller.appendChild(document.createElement("div"));
  names.className = "names";
  const canvas = scroller.appendChild(document.createElement("canvas"));
  const tops = [];
  let height = AXIS;
  const heading = names.appendChild(document.createElement("div"));
  heading.style.height = AXIS + "px";
  for (const lane of data.lanes) {
    tops.push(height);
    const tall = BAR + (lane.strip.length ? STRIP + 1 : 0) + GAP;
    const name = names.appendChild(document.createElement("div"));
    name.textContent = lane.name;
    name.style.height = tall + "px";
    name.style.paddingBottom = GAP + "px";
    height += tall;
  }
  const pen = canvas.getContext("2d");
  let width = 0;

  const colour = (span, palette) => {
    if (span[2] === KIND.WAIT) return palette.wait;
    if (span[2] === KIND.MARK || span[2] === KIND.TRANSFER) return palette.mark;
    if (span[2] === KIND.COLLATION) return palette.collation;
    return span[4] % 2 ? palette.run2 : palette.run;
  };
  function draw() {
    const palette = { wait: css("--wait"), mark: css("--mark"), run: css("--run"), run2: css("--run2"), collation: COLOURS[6] };
    const ratio = window.devicePixelRatio || 1;
    width = canvas.clientWidth;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = height + "px";
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const x = linear(view[0], view[1], 0, width);
    pen.font = "11.5px system-ui, sans-serif";
    for (const mark of ticks(view[0] / 1e6, view[1] / 1e6, Math.max(3, width / 130))) {
      pen.fillStyle = css("--grid");
      pen.fillRect(x(mark * 1e6), AXIS - 4, 1, height);
      pen.fillStyle = css("--muted");
      const label = view[1] - view[0] > 2e6 ? trimmed(mark, 6) + " s" : trimmed(mark * 1e3, 7) + " ms";
      if (x(mark * 1e6) + pen.measureText(label).width + 4 < width) pen.fillText(label, x(mark * 1e6) + 3, 12);
    }
    data.lanes.forEach((lane, number) => {
      const top = tops[number];
      // In a crowd, spans narrower than a pixel are drawn as narrow as they are: pale, not solid.
      const crowd = lane.spans.filter((span) => span[0] < view[1] && span[0] + span[1] > view[0]).length > width / 3;
      const least = crowd ? 0.05 : 0.6;
      for (const span of lane.spans) {
        const [left, right] = [x(span[0]), x(span[0] + span[1])];
        if (right < 0 || left > width) continue;
        // Several spans drawn as one are as high as the share of the time that they take.
        const high = span.length > 6 ? Math.max(1, (BAR * span[6]) / 1000) : BAR;
        pen.fillStyle = colour(span, palette);
        pen.fillRect(left, top + BAR - high, Math.max(least, right - left - (right - left > 3 ? 0.5 : 0)), high);
      }
      for (const piece of lane.strip) {
        const [left, right] = [x(piece[0]), x(piece[1])];
        if (right < 0 || left > width) continue;
        let y = top + BAR + 1;
        for (let n = 2; n < piece.length; n += 2) {
          pen.fillStyle = opColour(piece[n]);
          pen.fillRect(left, y, Math.max(0.6, right - left), (STRIP * piece[n + 1]) / 1000);
          y += (STRIP * piece[n + 1]) / 1000;
        }
      }
      for (const [at, what] of lane.moments) {
        if (what === "start") continue;
        pen.fillStyle = what === "end" ? css("--wait") : css("--ink");
        pen.fillRect(x(at) - 0.75, top - 2, 1.5, BAR + 4);
      }
    });
    pen.fillStyle = css("--muted");
    for (const at of data.epochs) pen.fillRect(x(at), AXIS - 6, 1, height);
  }
  function zoom(factor, around) {
    const size = Math.min(whole, Math.max(20, (view[1] - view[0]) * factor));
    const share = (around - view[0]) / (view[1] - view[0]);
    const start = Math.max(0, Math.min(whole - size, around - share * size));
    view = [start, start + size];
    draw();
  }
  const timeAt = (event) => {
    const box = canvas.getBoundingClientRect();
    return view[0] + ((event.clientX - box.left) / box.width) * (view[1] - view[0]);
  };
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.002), timeAt(event));
  }, { passive: false });
  canvas.addEventListener("dblclick", () => zoom(Infinity, whole / 2));
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    held = [event.clientX, ...view];
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => { held = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (held) {
      const moved = ((held[0] - event.clientX) / width) * (held[2] - held[1]);
      const start = Math.max(0, Math.min(whole - (held[2] - held[1]), held[1] + moved));
      view = [start, start + held[2] - held[1]];
      draw();
      return;
    }
    tell(event, describe(timeAt(event), event.clientY - canvas.getBoundingClientRect().top));
  });
  canvas.addEventListener("pointerleave", (event) => tell(event, ""));
  function describe(at, y) {
    const number = tops.findIndex((top, n) => y >= top && y < (tops[n + 1] ?? height));
    if (number < 0) return "";
    const lane = data.lanes[number];
    const slack = ((view[1] - view[0]) / width) * 1.5;
    const moment = lane.moments.find(([when]) => Math.abs(when - at) < 2 * slack);
    const lines = moment ? [`${lane.name}: ${moment[1]}`] : [];
    if (y > tops[number] + BAR) {
      const piece = lane.strip.find(([start, end]) => start <= at && at < end);
      for (let n = 2; piece && n < piece.length; n += 2) lines.push(`${data.ops[piece[n]]} ${Math.round(piece[n + 1] / 10)} %`);
      return lines.join("\n");
    }
    for (let n = lane.spans.length - 1; n >= 0; n--) {
      const [start, length, kind, many, batch, label] = lane.spans[n];
      if (start - slack > at || start + length + slack < at) continue;
      const what = label || KIND_NAME[kind];
      const which = many > 1 ? `${count(many)} times, ${Math.round(lane.spans[n][6] / 10)} % of` : batch >= 0 ? `batch ${batch}` : "";
      return [...lines, `${what} ${which}`.trim(), `${time(length)}, from ${time(start)}`].join("\n");
    }
    return lines.join("\n");
  }
  const kinds = new Set(data.lanes.flatMap((lane) => lane.spans.map((span) => span[2])));
  const shown = [];
  if (kinds.has(KIND.WAIT)) shown.push([css("--wait"), "consumer waits"]);
  if (kinds.has(KIND.RUN)) shown.push([css("--run"), "samples of a batch"]);
  if (kinds.has(KIND.COLLATION)) shown.push([COLOURS[6], "collation"]);
  if (kinds.has(KIND.MARK) || kinds.has(KIND.TRANSFER)) shown.push([css("--mark"), "marks, transfers"]);
  legend(place, [...shown, ...data.ops.slice(0, 10).map((name, n) => [opColour(n), name])]);
  draw();
  return draw;
}

const redraw = timeline();
function drawAll() {
  drawActivity();
  drawThroughput();
  drawLevels("queues", ["ready", "in_flight", "parked"], [COLOURS[0], COLOURS[1], COLOURS[3]]);
  drawLevels("workers", ["workers"], [COLOURS[2]]);
  drawScatter("waits", 1, 500);
  drawScatter("delays", 2, 500);
  drawQuantiles();
  drawBoxes();
}
drawAll();
const again = () => { redraw(); drawAll(); };
addEventListener("resize", again);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
