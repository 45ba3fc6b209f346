// Histograms over steps: a column for each log event, darkest where most values are, with lines for other runs.

const LEVELS = 48; // the rows of the picture
const WIDTH = 640; // the columns of the picture
const BOUNDS = [0.1, 0.5, 0.9]; // the quantiles that show another run

async function distributions() {
  const histograms = new Map(); // by name and mode: the histograms of each run, or null
  for (const [index, run] of REPORT.runs.entries()) {
    for (const histogram of run.histograms) {
      const key = `${histogram.name}\n${histogram.mode}`;
      if (!histograms.has(key)) histograms.set(key, REPORT.runs.map(() => null));
      histograms.get(key)[index] = histogram;
    }
  }
  if (!histograms.size) return hideSection("distributions");
  for (const all of histograms.values()) $("#histograms").append(await histogramBox(all));
}

/** The box with the histograms of one name; `histograms` has an entry for each run, which may be null. */
async function histogramBox(histograms) {
  const { name, title } = histograms.find(Boolean);
  const [data, ...overlays] = await Promise.all(histograms.map((histogram) => histogram && jsonOf(histogram.data)));
  const all = [data, ...overlays].filter(Boolean);
  const steps = all.flatMap((each) => each.step);
  const [first, end] = range(steps);
  const view = { extent: range(all.flatMap((each) => each.edges.flat())), places: placesOf(steps), data, overlays };
  const canvas = el("canvas", { role: "img", "aria-label": visible(`${name} over steps ${first} to ${end}`), width: WIDTH, height: LEVELS });
  const lines = svg("svg", { viewBox: `0 0 ${WIDTH} ${LEVELS}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const [low, high] = view.extent;
  const course = first === end ? `step ${first}` : `steps ${first} to ${end}`;
  const box = el("figure", { class: "histogram", data: { name } },
    el("figcaption", {}, el("b", { textContent: visible(title || name) }), el("code", { textContent: title ? visible(name) : "" }), el("span", { textContent: course })),
    el("div", { class: "scale" }, el("span", { textContent: number(high) }), el("div", { class: "picture" }, canvas, lines), el("span", { textContent: number(low) })),
    OTHERS.length ? histogramLegend([data, ...overlays]) : null);
  const paint = () => paintHistograms(canvas, view);
  paint();
  onScheme(paint);
  overlays.forEach((each, i) => each && drawBounds(lines, each, view, LINES[i + 1]));
  canvas.addEventListener("mousemove", (event) => showHistogram(event, canvas, view));
  canvas.addEventListener("mouseleave", hideTip);
  canvas.addEventListener("click", (event) => pin(stepAt(event, canvas, view)));
  return box;
}

function histogramLegend(all) {
  const shown = REPORT.runs.filter((_, i) => all[i]);
  if (shown.length === 1) return el("div", { class: "legend" }, el("span", { textContent: `only in ${visible(shown[0].label)}` }));
  const text = (run) => (run === RUN ? visible(run.label) : `${visible(run.label)}: its median, and the bounds of the middle 80 %`);
  return el("div", { class: "legend" }, shown.map((run) => el("span", {}, swatchOf(run), text(run))));
}

/** The ends of each step's column, from 0 to 1: columns meet halfway between steps. */
function placesOf(all) {
  const steps = [...new Set(all)].sort((a, b) => a - b);
  const between = steps.slice(1).map((step, i) => (step + steps[i]) / 2);
  const [left, right] = steps.length > 1 ? [2 * steps[0] - between[0], 2 * steps.at(-1) - between.at(-1)] : [steps[0] - 0.5, steps[0] + 0.5];
  const ends = [left, ...between, right].map((at) => (at - left) / (right - left));
  return { steps, ends };
}

/** The columns of one run: each ends where the next begins, and the last is about as wide as the one before. */
function columnsOf({ step }, { steps, ends }) {
  const starts = step.map((at) => ends[steps.indexOf(at)]);
  const [before, from] = [starts.at(-2) ?? starts.at(-1), starts.at(-1)];
  const end = Math.min(1, Math.max(ends[steps.indexOf(step.at(-1)) + 1], 2 * from - before));
  return starts.map((start, i) => [start, starts[i + 1] ?? end]);
}

const levelOf = (value, [low, high]) => ((value - low) / (high - low || 1)) * LEVELS;

function paintHistograms(canvas, { data, extent, places }) {
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, WIDTH, LEVELS);
  if (!data) return;
  const accent = cssVariable("--accent");
  const spans = columnsOf(data, places);
  for (const [column, bins] of data.counts.entries()) {
    const edges = data.edges[column];
    const total = bins.reduce((a, b) => a + b, 0) || 1;
    const levels = new Float64Array(LEVELS);
    for (const [bin, count] of bins.entries()) {
      const from = Math.min(LEVELS - 1, Math.max(0, Math.floor(levelOf(edges[bin], extent))));
      const to = Math.min(LEVELS - 1, Math.max(from, Math.ceil(levelOf(edges[bin + 1], extent)) - 1));
      for (let at = from; at <= to; at++) levels[at] += count / total / (to - from + 1);
    }
    const most = Math.max(...levels) || 1;
    const [from, to] = spans[column].map((at) => Math.round(at * WIDTH));
    for (const [at, share] of levels.entries()) {
      if (!share) continue;
      context.fillStyle = faded(accent, 0.08 + 0.92 * Math.sqrt(share / most));
      context.fillRect(from, LEVELS - 1 - at, Math.max(1, to - from), 1);
    }
  }
}

/** The quantile of a histogram, interpolated linearly between the edges of a bin. */
function quantileOf(counts, edges, share) {
  let left = share * counts.reduce((a, b) => a + b, 0);
  for (const [bin, count] of counts.entries()) {
    if (count && left <= count) return edges[bin] + (left / count) * (edges[bin + 1] - edges[bin]);
    left -= count;
  }
  return NaN;
}

/** Draw another run's median and bounds over the picture, as step lines. */
function drawBounds(lines, overlay, { extent, places }, colour) {
  const spans = columnsOf(overlay, places);
  for (const share of BOUNDS) {
    const heights = overlay.counts.map((counts, i) => LEVELS - levelOf(quantileOf(counts, overlay.edges[i], share), extent));
    const parts = spans.flatMap(([from, to], i) => (Number.isFinite(heights[i]) ? [from, to].map((at) => `${(at * WIDTH).toFixed(1)} ${heights[i].toFixed(2)}`) : []));
    if (!parts.length) continue;
    const path = svg("path", { class: share === 0.5 ? "median" : "bound", d: `M${parts.join("L")}`, "vector-effect": "non-scaling-stroke" });
    path.style.stroke = `var(${colour})`;
    lines.append(path);
  }
}

/** The step under the pointer. */
function stepAt(event, canvas, { places: { steps, ends } }) {
  const at = event.offsetX / canvas.clientWidth;
  return steps[Math.max(0, Math.min(steps.length - 1, ends.findIndex((end) => end > at) - 1))];
}

const columnAt = ({ step }, at) => step.reduce((column, start, i) => (start <= at ? i : column), 0);

function showHistogram(event, canvas, view) {
  const at = stepAt(event, canvas, view);
  const parts = [view.data, ...view.overlays].map((data, i) => [REPORT.runs[i], data]).filter(([, data]) => data);
  const lines = parts.flatMap(([run, data]) => {
    const column = columnAt(data, at);
    const [counts, edges] = [data.counts[column], data.edges[column]];
    const total = counts.reduce((a, b) => a + b, 0);
    const head = `${OTHERS.length ? `${visible(run.label)}, ` : ""}step ${data.step[column]}`;
    const said = [el("b", { textContent: head }), el("i", { textContent: `${plural(total, "value")} from ${number(edges[0])} to ${number(edges.at(-1))}` })];
    if (total) {
      const bin = counts.findIndex((count, i) => counts.slice(0, i + 1).reduce((a, b) => a + b, 0) >= total / 2);
      said.push(el("i", { textContent: `median between ${number(edges[bin])} and ${number(edges[bin + 1])}` }));
    }
    return said;
  });
  showTip(lines, { left: event.clientX + 12, top: event.clientY - 8, bottom: event.clientY + 8 });
}
