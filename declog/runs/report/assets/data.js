// Reads the data in the file: JSON in `#meta`, and blobs of gzip, written as characters and decoded when needed.

const REPORT = JSON.parse($("#meta").textContent);
const [RUN, ...OTHERS] = REPORT.runs; // OTHERS: the runs that this one is compared with

const DIGITS = [...Array(94).keys()].map((i) => i + 33).filter((code) => !"<>&".includes(String.fromCharCode(code)));
const DIGIT = new Uint8Array(128);
DIGITS.forEach((code, digit) => (DIGIT[code] = digit));

/** Decode characters to bytes: two of 91 digits hold 13 bits, the highest first. */
function unpacked(text, size) {
  const bytes = new Uint8Array(size);
  let bits = 0;
  let held = 0;
  let at = 0;
  for (let i = 0; i < text.length; i += 2) {
    bits = (bits << 13) | (DIGIT[text.charCodeAt(i)] * DIGITS.length + DIGIT[text.charCodeAt(i + 1)]);
    held += 13;
    while (held >= 8 && at < size) bytes[at++] = (bits >> (held -= 8)) & 255;
    bits &= (1 << held) - 1;
  }
  return bytes;
}

/** The decompressed bytes of a blob. */
async function bytesOf(blob) {
  const { textContent, dataset } = $(`#b${blob}`);
  const stream = new Blob([unpacked(textContent, Number(dataset.size))]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const parsed = new Map();

/** The value of a blob of JSON, which is parsed once. */
function jsonOf(blob) {
  if (!parsed.has(blob)) parsed.set(blob, bytesOf(blob).then((bytes) => JSON.parse(new TextDecoder().decode(bytes))));
  return parsed.get(blob);
}

/** Restore `count` numbers of `size` bytes that were stored byte by byte: all first bytes, then all second bytes, ... */
function unshuffled(bytes, at, count, size) {
  const out = new Uint8Array(count * size);
  for (let byte = 0; byte < size; byte++) {
    for (let i = 0; i < count; i++) out[i * size + byte] = bytes[at + byte * count + i];
  }
  return out.buffer;
}

/** Give each series of a run its steps `x` and values `y`. */
async function decodeSeries(run) {
  const steps = [];
  for (const blob of run.steps) {
    const bytes = await bytesOf(blob);
    steps.push(new Float64Array(unshuffled(bytes, 0, bytes.length / 8, 8)));
  }
  const bytes = await bytesOf(run.values);
  let at = 0;
  for (const series of run.series) {
    const { count, size } = series;
    const buffer = unshuffled(bytes, at, count, size);
    series.y = size === 4 ? Float64Array.from(new Float32Array(buffer)) : new Float64Array(buffer);
    series.x = steps[series.at];
    series.run = run;
    series.others = []; // the series of this name and mode in the compared runs
    at += count * size;
  }
}

/** Add to each series of this run the series of the same name and mode of the other runs. */
function pairSeries() {
  for (const series of OTHERS.flatMap((run) => run.series)) seriesOf(RUN, series.name, series.mode)?.others.push(series);
}

/** The name of a series, with its mode if it is not the first mode of that name, and its run if it is another run. */
function spokenName({ name, mode, run }) {
  const spoken = run.series.find((series) => series.name === name).mode === mode ? name : `${name} (${mode})`;
  return run === RUN ? spoken : `${spoken} of ${visible(run.label)}`;
}

const seriesOf = (run, name, mode) => run.series.find((series) => series.name === name && (mode == null || series.mode === mode));

// -- numbers

const MINUS = "−";

const WORDS = new Map([["NaN", NaN], ["Infinity", Infinity], ["-Infinity", -Infinity]]); // numbers that JSON lacks

/** A number as text, with few digits. */
function number(value) {
  if (value == null) return "–";
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : `${MINUS}∞`;
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en").replace("-", MINUS);
  const exponential = size >= 1e5 || (value !== 0 && size < 1e-3);
  const text = exponential ? value.toExponential(2) : value.toLocaleString("en", { maximumSignificantDigits: 4 });
  return text.replaceAll("-", MINUS);
}

/** A value of a series as text, with its unit. */
const shown = (series, value) => number(value) + (series.unit && Number.isFinite(value) ? ` ${series.unit}` : "");

const signed = (text) => (/^(\u2212|0(?![.\d]))/.test(text) ? text : `+${text}`);
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

function duration(seconds) {
  if (seconds >= 3600) return `${(seconds / 3600).toFixed(1)} h`;
  return seconds >= 60 ? `${(seconds / 60).toFixed(1)} min` : `${seconds.toFixed(0)} s`;
}

const moment = (seconds) => `${new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;

const missing = (value) => value == null || Number.isNaN(value);

function mean(values) {
  let sum = 0;
  let count = 0;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    sum += value;
    count++;
  }
  return count ? sum / count : NaN;
}

/** The sample standard deviation of the finite values; NaN of fewer than two. */
function deviation(values) {
  const finite = Array.from(values).filter(Number.isFinite);
  const middle = mean(finite);
  return Math.sqrt(finite.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (finite.length - 1 || NaN));
}

function median(values) {
  const sorted = Array.from(values).filter(Number.isFinite).sort((a, b) => a - b);
  return sorted.length ? sorted[sorted.length >> 1] : NaN;
}

/** The least and the greatest finite value. */
function range(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/** The last value, finite or not. */
const last = (series) => (series.y.length ? series.y[series.y.length - 1] : NaN);

/** The number of values in a tenth of a series: at least three, and at most half of all. */
const tenth = ({ count }) => Math.min(Math.ceil(count / 2), Math.max(3, Math.floor(count / 10)));
const firstTenth = (series) => series.y.slice(0, tenth(series));
const lastTenth = (series) => series.y.slice(-tenth(series));

/** The step from which on no value is finite; null if the last value is finite. */
function brokenSince({ x, y }) {
  let at = y.length;
  while (at && !Number.isFinite(y[at - 1])) at--;
  return at === y.length ? null : x[at];
}

/** The last value, NaN or infinite, and the step since which the series is not finite. */
const brokenText = (series) => `${number(last(series))} since step ${number(brokenSince(series))}`;

/** The greatest relative rounding error of the page's values, which have 16 bits: see `narrowed`. */
const ROUNDING = 2 ** -15;

/** Whether the mean of the last tenth is in the healthy range: true without a range, and false if the last value is not finite. */
function isHealthy(series) {
  if (!series.healthy) return true;
  const [low, high] = series.healthy;
  const value = mean(lastTenth(series));
  const rounding = Math.abs(value) * ROUNDING;
  return (
    brokenSince(series) == null && (low == null || value + rounding >= low) && (high == null || value - rounding <= high)
  );
}

/** The healthy range in words. */
function healthyText(series) {
  const [low, high] = series.healthy;
  if (low == null) return `at most ${shown(series, high)}`;
  return high == null ? `at least ${shown(series, low)}` : `${number(low)} to ${shown(series, high)}`;
}

/** The exponential moving average of values, with the weight `past` for earlier ones, and without bias at the beginning. */
function smoothed(values, past) {
  if (!past) return values;
  let sum = 0;
  let weight = 0;
  return values.map((value) => {
    if (value == null || !Number.isFinite(value)) return value;
    sum = past * sum + (1 - past) * value;
    weight = past * weight + (1 - past);
    return sum / weight;
  });
}

/** At most `count` points [x, mean of y] of a series. */
function thinned({ x, y }, count) {
  if (y.length <= count) return Array.from(y, (value, i) => [x[i], value]);
  const width = y.length / count;
  return Array.from({ length: count }, (_, i) => {
    const from = Math.floor(i * width);
    return [x[from], mean(y.slice(from, Math.floor((i + 1) * width)))];
  });
}

/** A small curve of a series, with gaps for values that are not finite, in front of the curves of other runs. */
function sparkline(series, width = 260, height = 40) {
  const curves = [series, ...series.others].map((curve) => thinned(curve, 120));
  const node = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const points = curves.flat();
  if (points.filter(([, y]) => Number.isFinite(y)).length < 2) return node;
  const [left, right] = range(points.map(([x]) => x));
  const [low, high] = range(points.map(([, y]) => y));
  const placed = (x, y) => [((x - left) / (right - left || 1)) * width, height - 3 - ((y - low) / (high - low || 1)) * (height - 6)];
  for (const [index, curve] of [...curves.entries()].reverse()) {
    for (const piece of pieces(curve)) {
      const ends = piece.length > 1 ? piece : [piece[0], piece[0]]; // draw a single point as a dot
      const path = ends.map(([x, y], i) => (i ? "L" : "M") + placed(x, y).map((at) => at.toFixed(1)).join(" ")).join("");
      const [from, to] = [placed(ends[0][0], 0)[0], placed(ends.at(-1)[0], 0)[0]].map((at) => at.toFixed(1));
      if (!index) node.append(svg("path", { class: "area", d: `${path}L${to} ${height}L${from} ${height}Z` }));
      const line = svg("path", { class: "line", d: path, "vector-effect": "non-scaling-stroke" });
      line.style.stroke = `var(${LINES[index]})`;
      node.append(line);
    }
  }
  return node;
}

/** The pieces of a curve between its gaps. */
function pieces(curve) {
  const runs = [[]];
  for (const point of curve) {
    if (Number.isFinite(point[1])) runs.at(-1).push(point);
    else if (runs.at(-1).length) runs.push([]);
  }
  return runs.filter((run) => run.length);
}
