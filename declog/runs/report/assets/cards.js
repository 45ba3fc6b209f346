// The cards of the core metrics: the last value, the best value, and whether the course is good.

/** The means of the successive tenths of a series' finite values. */
function tenths({ y }) {
  const values = Array.from(y).filter(Number.isFinite);
  const width = Math.max(1, Math.ceil(values.length / 10));
  return Array.from({ length: Math.ceil(values.length / width) }, (_, i) => mean(values.slice(i * width, (i + 1) * width)));
}

/** `good`, `bad` or nothing: the last tenth compared with the first and with the best tenth. */
function courseOf(series) {
  if (brokenSince(series) != null) return "bad";
  const sign = { up: 1, down: -1 }[series.good];
  const course = tenths(series).map((value) => sign * value);
  if (!sign || course.length < 2) return "";
  const [first, best, now] = [course[0], Math.max(...course), course.at(-1)];
  if (now < first || best - now > (best - first) / 2) return "bad"; // worse than at first, or more than half of the gain is lost
  return now > first ? "good" : "";
}

/** The first value, and the best; if no direction is better, the least and the greatest. */
function historyOf(series) {
  const { x, y, good, count } = series;
  if (count === 1) return "one value";
  const [low, high] = range(y);
  if (low > high) return "no finite value";
  const first = `first ${number(y.find(Number.isFinite))}`;
  if (!good) return `${first} · from ${number(low)} to ${number(high)}`;
  const best = good === "up" ? high : low;
  return `${first} · best ${number(best)} at step ${number(x[y.indexOf(best)])}`;
}

/** The card of a core metric: its last value, its best value, its course. */
function card(series) {
  const broken = brokenSince(series);
  const out = !isHealthy(series) && el("span", { class: "out", textContent: `healthy: ${healthyText(series)}` });
  const value = broken == null
    ? el("span", { class: "value" }, number(last(series)), el("small", { textContent: series.unit }))
    : el("span", { class: "value broken", textContent: brokenText(series) });
  const versus = series.others.map((other) => {
    const line = el("span", { class: "course", textContent: `${visible(other.run.label)}: ${number(last(other))} at step ${number(other.x[other.count - 1])}` });
    line.style.color = `var(${LINES[REPORT.runs.indexOf(other.run)]})`;
    return line;
  });
  return hint(
    el("button", { class: "card", type: "button", onclick: () => go({ metric: series.name }) },
      el("span", { class: "head" }, el("span", { textContent: visible(series.title || series.name) }), out || null),
      value,
      el("span", { class: `course ${courseOf(series)}`, textContent: historyOf(series) }),
      versus,
      sparkline(series)),
    () => about(series));
}
