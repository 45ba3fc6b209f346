// Histograms over steps: one column per log event, dark where most values lie.

const LEVELS = 48; // rows of the picture

async function distributions() {
  if (!RUN.histograms.length) return hideSection("distributions");
  for (const one of RUN.histograms) {
    const data = await jsonOf(one.data);
    const canvas = el("canvas", { role: "img", "aria-label": `${one.name} over steps ${data.step[0]} to ${data.step.at(-1)}` });
    const [low, high] = range(data.edges.flat());
    const course = data.step.length === 1 ? `step ${data.step[0]}` : `steps ${data.step[0]} to ${data.step.at(-1)}`;
    const box = el("figure", { class: "histogram", data: { name: one.name } },
      el("figcaption", {}, el("b", { textContent: visible(one.title || one.name) }), el("code", { textContent: one.title ? visible(one.name) : "" }), el("span", { textContent: course })),
      el("div", { class: "scale" }, el("span", { textContent: number(high) }), canvas, el("span", { textContent: number(low) })));
    const paint = () => paintHistograms(canvas, data, low, high);
    paint();
    onScheme(paint);
    canvas.addEventListener("mousemove", (event) => showHistogram(event, canvas, data));
    canvas.addEventListener("mouseleave", hideTip);
    canvas.addEventListener("click", (event) => pin(data.step[columnAt(event, canvas, data)]));
    $("#histograms").append(box);
  }
}

function paintHistograms(canvas, { counts, edges }, low, high) {
  canvas.width = counts.length;
  canvas.height = LEVELS;
  const context = canvas.getContext("2d");
  const accent = cssVariable("--accent");
  const level = (value) => ((value - low) / (high - low || 1)) * LEVELS;
  for (const [column, bins] of counts.entries()) {
    const total = bins.reduce((a, b) => a + b, 0) || 1;
    const levels = new Float64Array(LEVELS);
    for (const [bin, count] of bins.entries()) {
      const from = Math.min(LEVELS - 1, Math.max(0, Math.floor(level(edges[column][bin]))));
      const to = Math.min(LEVELS - 1, Math.max(from, Math.ceil(level(edges[column][bin + 1])) - 1));
      for (let at = from; at <= to; at++) levels[at] += count / total / (to - from + 1);
    }
    const most = Math.max(...levels) || 1;
    for (const [at, share] of levels.entries()) {
      if (!share) continue;
      context.fillStyle = faded(accent, 0.08 + 0.92 * Math.sqrt(share / most));
      context.fillRect(column, LEVELS - 1 - at, 1, 1);
    }
  }
}

const columnAt = (event, canvas, data) =>
  Math.max(0, Math.min(data.step.length - 1, Math.floor((event.offsetX / canvas.clientWidth) * data.step.length)));

function showHistogram(event, canvas, data) {
  const column = columnAt(event, canvas, data);
  const [counts, edges] = [data.counts[column], data.edges[column]];
  const total = counts.reduce((a, b) => a + b, 0);
  let half = total / 2;
  const bin = counts.findIndex((count) => (half -= count) <= 0);
  const lines = [el("b", { textContent: `step ${data.step[column]}` }), el("i", { textContent: `${plural(total, "value")} from ${number(edges[0])} to ${number(edges.at(-1))}` })];
  if (total) lines.push(el("i", { textContent: `median between ${number(edges[bin])} and ${number(edges[bin + 1])}` }));
  showTip(lines, { left: event.clientX + 12, top: event.clientY - 8, bottom: event.clientY + 8 });
}
