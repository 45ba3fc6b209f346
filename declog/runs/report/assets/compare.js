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

  const both = RUN.series.filter((series) => series.other && Math.min(series.count, series.other.count) > 2 && !series.name.startsWith("declog/"));
  const results = both.map((series) => {
    const [one, two] = [series, series.other].map((each) => each.y.slice(-aboutEnds(each)));
    const noise = Math.hypot(deviation(one), deviation(two)) / Math.SQRT2 || Math.abs(mean(one)) * 1e-6 || 1e-12;
    const difference = mean(one) - mean(two);
    return { series, one: mean(one), two: mean(two), difference, effect: Math.abs(difference) / noise };
  });
  const told = results.filter((row) => Number.isFinite(row.effect) && row.difference).sort((a, b) => b.effect - a.effect).slice(0, 14);
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
