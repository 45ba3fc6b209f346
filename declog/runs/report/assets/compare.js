// Two runs: what differs in their configurations, and in what came of it.

function compared() {
  if (!OTHER) return;
  $("#compare").hidden = false;
  $('nav a[href="#compare"]').hidden = false;
  for (const [index, run] of REPORT.runs.entries()) {
    $("#comparedruns").append(
      el("p", {}, el("i", { class: `swatch ${index ? "other" : ""}` }), el("b", { textContent: visible(run.label) }), ` ${subtitle(run)}`));
  }
  const value = (one) => (one == null ? el("span", { class: "dim", textContent: "not set" }) : el("code", { textContent: visible(one) }));
  const rows = REPORT.differences.map(({ key, values }) =>
    el("tr", {}, el("td", {}, el("code", { textContent: visible(key) })), ...values.map((one) => el("td", {}, value(one)))));
  $("#differences").append(rows.length
    ? table([["Configuration"], [visible(RUN.label)], [visible(OTHER.label)]], rows)
    : el("p", { textContent: "Their configurations are equal." }));

  const both = RUN.series.filter((series) => series.other && !series.name.startsWith("declog/"));
  const results = both.map((series) => {
    const [one, two] = [series, series.other].map(lastTenth);
    const difference = mean(one) - mean(two);
    return { series, one: mean(one), two: mean(two), difference, effect: Math.abs(difference) / noiseOf(one, two) };
  });
  const order = (a, b) => Number.isNaN(a.effect) - Number.isNaN(b.effect) || b.effect - a.effect;
  const told = results.filter((row) => row.difference).sort(order).slice(0, MOST_CHANGES);
  $("#results").append(told.length
    ? table([["Last tenth"], ["Course"], [visible(RUN.label), "n"], [visible(OTHER.label), "n"], ["Difference", "n"], ["× noise", "n"]],
      told.map((row) => el("tr", {},
        el("td", {}, toChart(row.series)),
        el("td", {}, sparkline(row.series, 150, 24)),
        el("td", { class: "n", textContent: shown(row.series, row.one) }),
        el("td", { class: "n", textContent: shown(row.series, row.two) }),
        el("td", { class: `n ${better(row.series, row.difference)}`, textContent: signed(shown(row.series, row.difference)) }),
        el("td", { class: "n", textContent: effectText(row.effect) }))))
    : el("p", { class: "dim", textContent: "No value that both logged differs at their ends." }));
}
