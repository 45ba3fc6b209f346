// The curves: charts are drawn when they come into view, share one cursor and one zoom, and a click pins a step.

const HEIGHT = 190;
const FEW = 2; // groups with at most so many charts share a row
const WHOLE = [...Array(16).keys()].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power)); // distances of ticks
const drawn = new Map(); // box -> uPlot
const view = { smoothing: 0, log: false, clock: false, zoom: null, pinned: null };

const schemeChanges = [];
const onScheme = (action) => schemeChanges.push(action);

function curves() {
  const groups = chartsInGroups();
  if (!groups.length) return hideSection("curves");
  const small = el("div", { class: "small" }); // the groups with few charts
  for (const [group, charts] of groups) {
    const few = charts.length <= FEW && group !== "core" && groups.length > 2;
    const grid = el("div", { class: "grid" }, charts.map(chartBox));
    const box = el("div", { class: "group", data: { group, count: charts.length } }, el("h3", { textContent: visible(groupTitle(group)) }), grid);
    (few ? small : $("#plots")).append(box);
  }
  $("#plots").append(small, ...$$(":scope > [data-group=declog]", $("#plots"))); // move the group of declog's own metrics to the end
  $("#filter").addEventListener("input", (event) => filterCharts(event.target.value));
  $("#smoothing").addEventListener("input", (event) => redraw({ smoothing: Number(event.target.value) }));
  $("#log").addEventListener("change", (event) => redraw({ log: event.target.checked }));
  $("#unzoom").addEventListener("click", () => zoom(null));
  clockControl();
  onScheme(() => redraw({}));
  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => drawn.forEach((plot, box) => plot.setSize({ width: widthOf(box), height: HEIGHT })), 120);
  });
}

const widthOf = (box) => Math.max(200, $(".canvas", box).clientWidth);

const inView = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting && !drawn.has(entry.target)).forEach((entry) => draw(entry.target)),
  { rootMargin: "400px" });

/** All series of a chart. */
const seriesIn = ({ lines, band }) => [...lines.map(({ series }) => series), ...(band ?? [])];

/** The text of a chart for readers who do not see it. */
function chartLabel(chart) {
  return seriesIn(chart)
    .map((series) => {
      const [low, high] = range(series.y);
      const extremes = low <= high ? `least ${number(low)}, greatest ${number(high)}` : "no finite value";
      return `${spokenName(series)}: ${plural(series.count, "step")}, last ${number(last(series))}, ${extremes}`;
    })
    .join("; ");
}

function chartBox(chart) {
  const { lines, band } = chart;
  const [{ series: first }] = lines;
  const single = lines.length === 1;
  const info = hint(el("button", { class: "info", type: "button", textContent: "i", "aria-label": `About ${chart.title}` }), () =>
    chart.shared ? lines.flatMap(({ series }) => about(series)) : about(first));
  const legend = single ? [] : lines.map(legendEntry);
  if (OTHERS.length && single) legend.push(el("span", { textContent: `only in ${visible(first.run.label)}` }));
  if (band) legend.push(el("span", { textContent: "line: mean, band: least to greatest" }));
  const canvas = el("div", { class: "canvas", role: "img", tabIndex: 0, "aria-label": visible(chartLabel(chart)) });
  const box = el("div", { class: "plot", data: { name: [...new Set(seriesIn(chart).map((series) => series.name))].join("\n") } },
    el("div", { class: "head" },
      el("span", { class: "title", textContent: visible(chart.title) }),
      el("code", { textContent: chart.title === chart.code ? "" : visible(chart.code) }),
      el("span", { class: "now", textContent: single ? shown(first, last(first)) : "" }),
      info),
    canvas,
    legend.length ? el("div", { class: "legend" }, legend) : null);
  canvas.addEventListener("keydown", (event) => keyOnChart(event, box));
  canvas.addEventListener("blur", () => drawn.get(box)?.setCursor({ left: -10, top: -10 }));
  box.chart = chart;
  inView.observe(box);
  return box;
}

function legendEntry({ series, label, colour, dash }, index) {
  const swatch = el("i", { class: dash ? "swatch dashed" : "swatch" });
  swatch.style.color = `var(${LINES[colour % LINES.length]})`;
  return el("span", {}, swatch, `${visible(label)} `, el("b", { textContent: shown(series, last(series)), data: { index } }));
}

function filterCharts(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const box of $$(".plot")) {
    const all = seriesIn(box.chart).map((series) => `${series.name} ${series.title} ${series.help} ${series.tags.join(" ")}`).join(" ");
    const text = `${box.dataset.name} ${all}`.toLowerCase();
    box.hidden = !words.every((word) => text.includes(word));
  }
  for (const group of $$("#plots .group")) group.hidden = $$(".plot", group).every((box) => box.hidden);
  $("#nocurve").hidden = $$(".plot").some((box) => !box.hidden);
}

function redraw(changed) {
  Object.assign(view, changed);
  for (const [box, plot] of drawn) {
    plot.destroy();
    drawn.delete(box);
    inView.unobserve(box);
    inView.observe(box);
  }
}

function drawAll() {
  for (const box of $$(".plot")) if (!drawn.has(box)) draw(box);
}

// -- one chart

/** The lines of a chart, in the order of its legend, as {x, y, colour, width, dash, points}, and the index of its band. */
function linesOf({ lines: drawnLines, band }) {
  const lines = [];
  for (const { series, colour: index, dash } of drawnLines) {
    const y = Array.from(series.y, (value) => (Number.isFinite(value) ? value : null));
    const colour = lineColour(index);
    const points = series.count < 40 ? { show: true, size: 5, fill: colour } : { show: false };
    if (view.smoothing) {
      lines.push({ x: series.x, y, colour: faded(colour, drawnLines.length > 1 ? 0.14 : 0.28), width: 1, points: { show: false } });
      lines.push({ x: series.x, y: smoothed(y, view.smoothing), colour, dash, width: 2, points: { show: false } });
    } else lines.push({ x: series.x, y, colour, dash, width: 1.5, points });
  }
  const bandAt = lines.length;
  const soft = faded(cssVariable("--accent"), 0.25);
  for (const end of band ?? []) {
    lines.push({ x: end.x, y: Array.from(end.y, (v) => (Number.isFinite(v) ? v : null)), colour: soft, width: 1, points: { show: false } });
  }
  return { lines, bandAt };
}

/** Columns over the steps of all lines: undefined if a line lacks the step, null if its value is not finite. */
function aligned(lines) {
  const [{ x }] = lines;
  if (lines.every((line) => line.x === x)) return [Array.from(x), ...lines.map((line) => line.y)];
  const steps = [...new Set(lines.flatMap((line) => Array.from(line.x)))].sort((a, b) => a - b);
  const indexOfStep = new Map(steps.map((step, i) => [step, i]));
  const columns = lines.map((line) => {
    const column = new Array(steps.length).fill(undefined);
    line.y.forEach((value, i) => (column[indexOfStep.get(line.x[i])] = value));
    return column;
  });
  return [steps, ...columns];
}

/** The positions of ticks. uPlot's own loop never ends if adding the distance does not change a great number. */
function ticks(plot, axis, low, high, apart) {
  const [from, to] = [Math.ceil(low / apart), Math.floor(high / apart)];
  return to - from < 100 ? Array.from({ length: to - from + 1 }, (_, i) => (from + i) * apart) : [];
}

function tick(value) {
  if (value == null) return "";
  const size = Math.abs(value);
  const exponential = size >= 1e4 || (value !== 0 && size < 1e-3);
  return exponential ? value.toExponential(2).replace(/\.?0+e/, "e") : String(Number(value.toPrecision(4)));
}

function draw(box) {
  const { chart } = box;
  const { lines, bandAt } = linesOf(chart);
  const log = view.log && lines.every(({ y }) => y.every((value) => value == null || value > 0));
  const [dim, rule] = [cssVariable("--dim"), cssVariable("--line")];
  const axis = { stroke: dim, font: "11px system-ui, sans-serif" };
  const columns = aligned(lines);
  const options = {
    width: widthOf(box),
    height: HEIGHT,
    cursor: { sync: { key: "steps" }, points: { size: 6 }, drag: { x: true, y: false, setScale: false }, y: false },
    legend: { show: false },
    scales: { x: { time: false, ...extent(columns[0]), ...clockScale() }, y: { distr: log ? 3 : 1, ...(log ? {} : { range: padded }) } },
    axes: [
      { ...axis, grid: { show: false }, ticks: { stroke: rule, size: 4 }, size: 28, incrs: WHOLE, splits: ticks, ...clockAxis() },
      { ...axis, grid: { stroke: rule, width: 1 }, ticks: { show: false }, size: 52, values: (_, all) => all.map(tick), splits: log ? undefined : ticks },
    ],
    series: [{}, ...lines.map(({ colour, dash, width, points }) => ({ stroke: colour, dash, width, points, pxAlign: 0 }))],
    bands: bandAt < lines.length ? [{ series: [bandAt + 2, bandAt + 1], fill: faded(cssVariable("--accent"), 0.1) }] : [],
    hooks: {
      drawAxes: [(plot) => drawMarks(plot, chart)],
      setCursor: [(plot) => showValues(plot, box)],
      setSelect: [(plot) => plot.select.width > 8 && zoom([plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")])],
    },
  };
  const plot = new uPlot(options, columns, $(".canvas", box));
  let pressed = 0;
  plot.over.addEventListener("mousedown", (event) => (pressed = event.clientX));
  plot.over.addEventListener("mouseup", (event) => Math.abs(event.clientX - pressed) < 3 && pinAtCursor(plot));
  plot.over.addEventListener("dblclick", () => zoom(null));
  drawn.set(box, plot);
}

/** The range of the shown steps: the zoom, or else all steps; a single step is in the middle. */
function extent(steps) {
  const [min, max] = view.zoom ?? [steps[0], steps.at(-1)];
  return min === max ? { min: min - 1, max: max + 1 } : { min, max };
}

/** The range of the y axis: the values with a margin, also for a flat curve. */
function padded(_, low, high) {
  if (low == null || high == null) return [0, 1];
  if (low === high) return low === 0 ? [0, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  const room = (high - low) * 0.05;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

/** Draw the healthy range, alerts, resumptions, values that are not finite, and the pinned step. */
function drawMarks(plot, { lines }) {
  const series = lines.map((line) => line.series);
  const context = plot.ctx;
  const { left, top, width, height } = plot.bbox;
  const [first] = series;
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  if (first.healthy && series.every((other) => String(other.healthy) === String(first.healthy))) {
    const [low, high] = first.healthy;
    const above = high == null ? top : Math.max(top, plot.valToPos(high, "y", true));
    const below = low == null ? top + height : Math.min(top + height, plot.valToPos(low, "y", true));
    context.fillStyle = faded(cssVariable("--good"), 0.09);
    if (below > above) context.fillRect(left, above, width, below - above);
  }
  const vertical = (step, colour, dash, thick = 1) => {
    const x = plot.valToPos(step, "x", true);
    context.strokeStyle = colour;
    context.lineWidth = thick * devicePixelRatio;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(x, top);
    context.lineTo(x, top + height);
    context.stroke();
  };
  const keys = new Set(series.flatMap((curve) => [curve.metric, curve.key]));
  for (const alert of first.run.alerts) {
    const own = alert.reads.some((name) => keys.has(name));
    const colour = cssVariable(alert.level === "error" ? "--bad" : "--warn");
    if (own || first.run.alerts.length <= 8) vertical(alert.step, faded(colour, own ? 0.75 : 0.25), [4, 3]);
  }
  for (const step of first.run.resumed) vertical(step, cssVariable("--dim"), [1, 3]);
  if (view.pinned != null) vertical(view.pinned, cssVariable("--accent"), [], 1.5);
  context.fillStyle = cssVariable("--bad");
  for (const broken of series.filter((other) => other.notFinite)) {
    broken.y.forEach((value, i) => {
      if (!Number.isFinite(value)) context.fillRect(plot.valToPos(broken.x[i], "x", true) - devicePixelRatio, top + height - 6 * devicePixelRatio, 2 * devicePixelRatio, 6 * devicePixelRatio);
    });
  }
  context.restore();
}

const valueAt = (series, step) => {
  const index = series.x.indexOf(step);
  return index < 0 ? undefined : series.y[index];
};

/** Show the values at the cursor, or else the last values. */
function showValues(plot, box) {
  const { lines } = box.chart;
  const step = plot.cursor.left < 0 || plot.cursor.idx == null ? null : plot.data[0][plot.cursor.idx];
  const now = $(".now", box);
  const text = (curve) => (step == null ? shown(curve, last(curve)) : shown(curve, valueAt(curve, step)));
  const [{ series }] = lines;
  if (lines.length === 1) now.textContent = step == null ? text(series) : `step ${step}: ${text(series)}`;
  else now.textContent = step == null ? "" : `step ${step}`;
  for (const value of $$(".legend b", box)) value.textContent = text(lines[value.dataset.index].series);
}

/** Show the same steps in all charts; null: all of them. */
function zoom(steps) {
  view.zoom = steps;
  $("#unzoom").hidden = !steps;
  for (const plot of drawn.values()) {
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    plot.setScale("x", extent(plot.data[0]));
  }
}

function keyOnChart(event, box) {
  const plot = drawn.get(box);
  if (!plot) return;
  const [steps] = plot.data;
  const at = plot.cursor.left < 0 || plot.cursor.idx == null ? steps.length : plot.cursor.idx;
  const far = Math.max(1, Math.round(steps.length / 20));
  const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - far, PageDown: at + far, Home: 0, End: steps.length - 1 };
  if (event.key in moves) {
    const to = Math.max(0, Math.min(steps.length - 1, moves[event.key]));
    plot.setCursor({ left: plot.valToPos(steps[to], "x"), top: 1 });
  } else if (event.key === "Enter") pinAtCursor(plot);
  else return;
  event.preventDefault();
}

// -- a pinned step

function pinAtCursor(plot) {
  if (plot.cursor.idx != null) pin(plot.data[0][plot.cursor.idx]);
}

/** Mark a step in all charts, and show its core values and a link to its samples. */
function pin(step) {
  view.pinned = step;
  for (const plot of drawn.values()) plot.redraw(false, true);
  const bar = $("#pin");
  bar.hidden = step == null;
  if (step == null) return;
  const values = RUN.core.slice(0, 4).map((name) => seriesOf(RUN, name)).map((series) => {
    const value = valueAt(series, step);
    return value === undefined ? null : el("span", {}, el("span", { class: "dim", textContent: `${visible(series.title || series.name)} ` }), shown(series, value));
  });
  const button = (text, onclick) => el("button", { class: "btn", type: "button", textContent: text, onclick });
  bar.replaceChildren(
    el("b", { textContent: `Step ${step}` }), ...values.filter(Boolean),
    ...(RUN.tables.length ? [button("samples near it", () => goToStep(step))] : []),
    button("unpin", () => pin(null)));
}
