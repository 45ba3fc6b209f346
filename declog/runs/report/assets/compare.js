// Compares this run with others: the differences of their configurations, and of their values at the same steps.

const COMPARED_SHARE = 0.1; // the share of the common steps that is compared

/** The first and the last step of the comparison, which covers the last tenth of the common steps; null without any. */
function comparedSteps() {
  const spans = REPORT.runs.map((run) => run.span).filter(Boolean);
  const [from, to] = [Math.max(...spans.map(([first]) => first)), Math.min(...spans.map(([, end]) => end))];
  return spans.length < REPORT.runs.length || from > to ? null : [Math.ceil(to - COMPARED_SHARE * (to - from)), to];
}

/** The values of a series between two steps; if they are fewer than three, the last three up to the second step. */
function valuesAt({ x, y }, [from, to]) {
  const upto = Array.from(y).filter((_, i) => x[i] <= to);
  const within = upto.filter((_, i) => x[i] >= from);
  return within.length < 3 ? upto.slice(-3) : within;
}

function compared() {
  if (!OTHERS.length) return;
  $("#compare").hidden = false;
  $('nav a[href="#compare"]').hidden = false;
  for (const run of REPORT.runs) $("#comparedruns").append(el("p", {}, swatchOf(run), el("b", { textContent: visible(run.label) }), ` ${subtitle(run)}`));
  configurations();
  results();
}

/** A mark in the colour of a run. */
function swatchOf(run) {
  const swatch = el("i", { class: "swatch" });
  swatch.style.color = `var(${LINES[REPORT.runs.indexOf(run)]})`;
  return swatch;
}

function configurations() {
  const unknown = REPORT.runs.filter((run) => !run.configured).map((run) => visible(run.label));
  if (unknown.length) {
    const text = `How the trainer was configured is not recorded for ${unknown.join(", ")}: only what declog was given is compared.`;
    $("#differences").append(el("p", { class: "out", textContent: text }));
  }
  const value = (setting) => (setting == null ? el("span", { class: "dim", textContent: "not set" }) : el("code", { textContent: visible(setting) }));
  const rows = REPORT.differences.map(({ key, values }) =>
    el("tr", {}, el("td", {}, el("code", { textContent: visible(key) })), ...values.map((setting) => el("td", {}, value(setting)))));
  const heads = REPORT.runs.map((run) => [visible(run.label)]);
  if (rows.length) $("#differences").append(table([["Configuration"], ...heads], rows));
  else if (!unknown.length) $("#differences").append(el("p", { textContent: "Their configurations are equal." }));
}

function results() {
  const steps = comparedSteps();
  if (!steps) return void $("#results").append(el("p", { class: "dim", textContent: "They have no step in common." }));
  const paired = RUN.series.filter((series) => series.others.length && !series.name.startsWith("declog/"));
  const rows = paired.map((series) => {
    const own = valuesAt(series, steps);
    const others = OTHERS.map((run) => series.others.find((twin) => twin.run === run)).map((other) => {
      if (!other) return null;
      const values = valuesAt(other, steps);
      const difference = mean(values) - mean(own);
      return { value: mean(values), difference, effect: Math.abs(difference) / noiseOf(own, values) };
    });
    return { series, value: mean(own), others, effect: Math.max(...others.filter((other) => other?.difference).map((other) => other.effect)) };
  });
  const differing = rows.filter((row) => row.others.some((other) => other?.difference)).sort((a, b) => Number.isNaN(a.effect) - Number.isNaN(b.effect) || b.effect - a.effect).slice(0, MOST_CHANGES);
  const range = `Means over steps ${number(steps[0])} to ${number(steps[1])}: the last tenth of the steps that all of them have. A difference is the other run less ${visible(RUN.label)}.`;
  $("#results").append(el("p", { class: "dim", textContent: range }));
  if (!differing.length) return void $("#results").append(el("p", { class: "dim", textContent: "No value that they all logged differs there." }));
  const heads = OTHERS.flatMap((run) => [[visible(run.label), "n"], [`${visible(run.label)} − ${visible(RUN.label)}`, "n"], ["× noise", "n"]]);
  $("#results").append(table([["Metric"], ["Course"], [visible(RUN.label), "n"], ...heads],
    differing.map(({ series, value, others }) => {
      const cell = (text, kind = "") => el("td", { class: `n ${kind}`, textContent: text });
      return el("tr", {},
        el("td", {}, toChart(series)),
        el("td", {}, sparkline(series, 150, 24)),
        cell(shown(series, value)),
        ...others.flatMap((other) => other
          ? [cell(shown(series, other.value)), cell(signed(shown(series, other.difference)), better(series, other)), cell(effectText(other.effect))]
          : [cell("–"), cell("–"), cell("–")]));
    })));
}
