// What changed over the run: its first tenth against its last, and the largest jump.

const MOST_CHANGES = 14;

/** A link to a series' chart, followed by its name if the link shows a title. */
function toChart(series) {
  const name = series.title ? el("code", { class: "dim", textContent: visible(series.name) }) : null;
  return [link(visible(series.title || series.name), () => go({ metric: series.name })), " ", name];
}

const effectText = (effect) => (Number.isNaN(effect) ? "–" : effect > 99 ? "> 99" : effect.toFixed(1));

/** Whether a difference is `good` or `bad`; empty if it is within the noise, or if no direction is better. */
function better({ good }, { difference, effect }) {
  if (!good || !difference || !(effect >= 1)) return "";
  return (good === "up") === difference > 0 ? "good" : "bad";
}

/** The noise of two stretches: the root mean square of their standard deviations; NaN if one has a single value. */
function noiseOf(before, after) {
  const noise = Math.hypot(deviation(before), deviation(after)) / Math.SQRT2;
  return noise === 0 ? Math.abs(mean(before)) * 1e-6 || 1e-12 : noise;
}

/** The step at which the running median jumps most. */
function largestJump({ x, y, count }) {
  const width = Math.max(3, Math.floor(count / 40));
  let most = 0;
  let step = null;
  for (let i = width; i + width <= count; i += Math.max(1, width >> 1)) {
    const jump = Math.abs(median(y.slice(i, i + width)) - median(y.slice(i - width, i)));
    if (jump > most) [most, step] = [jump, x[i]];
  }
  return step;
}

/** The change from the first tenth to the last; a series that ends in NaN has an infinite effect. */
function change(series) {
  if (brokenSince(series) != null) return { series, first: mean(firstTenth(series)), end: NaN, difference: NaN, effect: Infinity };
  const [first, end] = [firstTenth(series), lastTenth(series)];
  const noise = noiseOf(first, end);
  const difference = mean(end) - mean(first);
  return { series, first: mean(first), end: mean(end), difference, effect: Math.abs(difference) / noise };
}

function changes() {
  const rows = RUN.series
    .filter((series) => series.count >= 20 && !series.name.startsWith("declog/"))
    .map(change)
    .filter((row) => !Number.isNaN(row.effect) && row.difference !== 0)
    .sort((a, b) => (a.effect === b.effect ? 0 : b.effect - a.effect))
    .slice(0, MOST_CHANGES);
  if (!rows.length) return hideSection("changes");
  $("#changetable").append(
    table([["Metric"], ["Course"], ["First tenth", "n"], ["Last tenth", "n"], ["Change", "n"], ["× noise", "n"], ["Largest jump", "n"]],
      rows.map((row) => {
        const { series, first, end, difference, effect } = row;
        const jump = largestJump(series);
        return el("tr", {},
          el("td", {}, toChart(series)),
          el("td", {}, sparkline(series, 150, 24)),
          el("td", { class: "n", textContent: shown(series, first) }),
          ...(Number.isNaN(end)
            ? [brokenText(series), "–", "–"].map((text, i) => el("td", { class: i ? "n" : "n bad", textContent: text }))
            : [
              el("td", { class: "n", textContent: shown(series, end) }),
              el("td", { class: `n ${better(series, row)}`, textContent: signed(shown(series, difference)) }),
              el("td", { class: "n", textContent: effectText(effect) }),
            ]),
          el("td", { class: "n" }, jump == null ? null : link(`step ${jump}`, () => goToStep(jump))));
      })));
}
