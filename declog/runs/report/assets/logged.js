// Lists every name that is logged, by the file that declares it, with its formula and meaning; each definition once.

/** The pack or file that declares a name; the loop's own numbers have none. */
const packOf = ({ place }) => place.match(/([^/]+)\.ya?ml/)?.[1] ?? (place ? "the command line" : "no file: the loop's own names");

function logged() {
  const rows = RUN.series.filter((series) => !series.name.startsWith("declog/"));
  if (!rows.length) return hideSection("logged");
  const packs = new Map();
  for (const series of rows) packs.set(packOf(series), [...(packs.get(packOf(series)) ?? []), series]);
  const shownLines = new Set();
  for (const [pack, all] of packs) {
    $("#loggedtable").append(
      el("details", {},
        el("summary", {}, el("b", { textContent: visible(pack) }), ` ${plural(all.length, "name")}`),
        el("div", { class: "wide" }, table([["Name"], ["Formula"], ["Meaning"], ["Healthy"], ["Tags"], ["Last", "n"]], all.map(loggedRow))),
        definitionsOf(all, shownLines)));
  }
  $("#config").append(configuration());
  if (RUN.config) $("#config").append(el("details", {}, el("summary", { textContent: "The config in effect" }), appendText(el("pre", { class: "txt" }), RUN.config)));
}

/** The trainer's configuration, folded; or a note that the run did not record it. */
function configuration() {
  const code = (text) => el("code", { textContent: text });
  if (!RUN.configured) return el("p", { class: "dim keys" }, "How the trainer was configured is not recorded: ", code("declog.start(cfg)"), " of a Hydra application, ", code("declog.attach"), ", or ", code("run_config="), " keeps it.");
  const rows = RUN.settings.map(([key, value]) => el("tr", {}, el("td", {}, el("code", { textContent: visible(key) })), el("td", {}, el("code", { textContent: visible(value) }))));
  return el("details", { id: "configuration" }, el("summary", { textContent: `Configuration: ${plural(rows.length, "setting")}` }), el("div", { class: "wide" }, table([["Key"], ["Value"]], rows)));
}

const linesOfFormula = (series) => visible(series.formula).split("\n");

function loggedRow(series) {
  const meaning = [series.title, series.help].filter(Boolean).join(": ") || series.words || "";
  return el("tr", { data: { name: series.name } },
    el("td", { class: "name" }, link(visible(series.name), () => go({ metric: series.name }), { class: "link code" }), el("div", { class: "dim place", textContent: visible(series.place) })),
    el("td", { class: "formula" }, el("code", { textContent: linesOfFormula(series)[0] })),
    el("td", {}, el("span", { textContent: visible(meaning) }), series.runbook ? el("div", { class: "dim", textContent: visible(series.runbook) }) : null),
    el("td", { textContent: series.healthy ? healthyText(series) : "" }),
    el("td", { textContent: visible(series.tags.join(", ")) }),
    el("td", { class: "n", textContent: shown(series, last(series)) }));
}

/** The definitions that the formulas of a pack read, except those that an earlier pack has shown. */
function definitionsOf(all, shownLines) {
  const lines = [...new Set(all.flatMap((series) => linesOfFormula(series).slice(1)))].filter((line) => !shownLines.has(line));
  lines.forEach((line) => shownLines.add(line));
  return lines.length ? el("div", { class: "definitions" }, el("span", { class: "dim", textContent: "where" }), lines.map((line) => el("code", { textContent: line }))) : null;
}
