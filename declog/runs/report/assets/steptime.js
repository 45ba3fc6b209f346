// The time of a step: stacked timers by step or by the clock, their shares, the slowest rank, and stalls.

const TIME_WIDTH = 1000;
const TIME_HEIGHT = 200;
const REST_COLOUR = "color-mix(in srgb, var(--dim) 35%, transparent)";

const secondsText = (seconds) => (seconds == null ? "–" : seconds >= 100 ? duration(seconds) : `${number(seconds)} s`);
const partColour = (index) => `var(${LINES[index % LINES.length]})`;

function stepTime() {
  const time = RUN.time;
  if (!time || !time.parts.length) return hideSection("steptime");
  const picture = svg("svg", { viewBox: `0 0 ${TIME_WIDTH} ${TIME_HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": timeLabel(time) });
  const [top, left, right] = ["top", "left", "right"].map((name) => el("span", { class: name }));
  const paint = () => {
    const ends = view.clock ? time.clock : time.steps;
    const from = time.from[view.clock ? 1 : 0];
    top.textContent = `${number(paintTime(picture, time, ends, from))} s`;
    left.textContent = view.clock ? "0 s" : `step ${number(from)}`;
    right.textContent = view.clock ? duration(ends.at(-1)) : `step ${number(ends.at(-1))}`;
    axis.textContent = view.clock ? "by step" : "by the clock";
  };
  const axis = el("button", { class: "btn", type: "button", onclick: () => setClock(!view.clock) });
  axis.hidden = OTHERS.length > 0;
  $("#steptimecontrols").append(axis);
  $("#steptimepicture").append(el("div", { class: "timescale" }, top, picture, el("div", { class: "ends" }, left, right)));
  $("#steptimetable").append(timeTable(time));
  if (time.stalls.length) $("#steptimestalls").append(...stallLines(time));
  clockChanges.push(paint);
  paint();
}

const timeLabel = ({ parts, restShare }) =>
  visible([...parts.map(({ name, share }) => `${name} ${percent(share)}`), `the rest ${percent(restShare)}`].join(", "));

const percent = (share) => `${number(Math.round(1000 * share) / 10)} %`;

/** Draw the stack; the column of a log event begins at the log event before. Return the seconds at the top. */
function paintTime(picture, time, ends, from) {
  const layers = [...time.parts.map(({ seconds }) => seconds), time.rest];
  const totals = ends.map((_, i) => layers.reduce((sum, layer) => sum + (layer[i] ?? 0), 0));
  const sorted = [...totals].sort((a, b) => a - b);
  const most = Math.min(sorted.at(-1), 1.5 * sorted[Math.floor(0.95 * (sorted.length - 1))]) || 1; // so a stall does not flatten the other steps
  const span = ends.at(-1) - from || 1;
  const x = (at) => (((at - from) / span) * TIME_WIDTH).toFixed(2);
  const y = (seconds) => (TIME_HEIGHT - (Math.min(seconds, most) / most) * TIME_HEIGHT).toFixed(2);
  const base = ends.map(() => 0);
  picture.replaceChildren();
  for (const [index, layer] of layers.entries()) {
    let path = "";
    for (const [i, end] of ends.entries()) {
      const start = i ? ends[i - 1] : from;
      const next = base[i] + (layer[i] ?? 0);
      if (next > base[i] && end > start) path += `M${x(start)} ${y(base[i])}V${y(next)}H${x(end)}V${y(base[i])}Z`;
      base[i] = next;
    }
    const shape = svg("path", { d: path, "data-part": time.parts[index]?.name ?? "rest" });
    shape.style.fill = index < time.parts.length ? partColour(index) : REST_COLOUR;
    picture.append(shape);
  }
  return most;
}

function timeTable(time) {
  const row = (name, colour, share, mean, slowest, times) => {
    const swatch = el("i", { class: "swatch block" });
    swatch.style.background = colour;
    const cells = [percent(share), secondsText(mean), secondsText(slowest), times == null ? "–" : `× ${number(times)}`];
    return el("tr", {}, el("td", {}, swatch, ` ${visible(name)}`), cells.map((text) => el("td", { class: "n", textContent: text })));
  };
  const rest = time.rest.filter((seconds) => seconds != null);
  const rows = time.parts.map((part, index) => row(part.name, partColour(index), part.share, part.mean, part.slowest, part.times));
  rows.push(row("the rest", REST_COLOUR, time.restShare, mean(rest), null, null));
  return table([["Part"], ["Share", "n"], ["A step", "n"], ["Slowest rank", "n"], ["Slowest to mean", "n"]], rows);
}

/** The lines about stalls, which are hangs, checkpoints, evaluations and resumptions. */
function stallLines({ stalls, median: usual }) {
  const lines = stalls.map(({ after, step, seconds, times }) => {
    const resumed = RUN.resumed.some((at) => at > after && at <= step) ? ", where the run was resumed" : "";
    return el("li", {}, link(`step ${step}`, () => goToStep(step)), ` ${secondsText(seconds)} after step ${after}, ${number(times)} times the usual${resumed}`);
  });
  return [el("p", { class: "dim", textContent: `Where the clock stood still: hangs, checkpoints, evaluations. A step usually takes ${secondsText(usual)}.` }), el("ul", {}, lines)];
}
