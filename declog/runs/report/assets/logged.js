// What is logged and why: every curve with its formula, its meaning and who declared it.

function logged() {
  const rows = RUN.series.filter((series) => !series.name.startsWith("declog/"));
  if (!rows.length) return hideSection("logged");
  $("#loggedtable").append(
    table([["Name"], ["Formula"], ["Meaning"], ["Healthy"], ["Tags"], ["Last", "n"]],
      rows.map((series) => {
        const meaning = [series.title, series.help].filter(Boolean).join(": ") || series.words || "";
        const [formula = "", ...definitions] = visible(series.formula).split("\n");
        return el("tr", { data: { name: series.name } },
          el("td", { class: "name" }, link(visible(series.name), () => go({ metric: series.name }), { class: "link code" }), el("div", { class: "dim place", textContent: visible(series.place) })),
          el("td", { class: "formula" }, el("code", { textContent: formula }), ...definitions.map((line) => el("code", { class: "dim", textContent: line }))),
          el("td", {}, el("span", { textContent: visible(meaning) }), series.runbook ? el("div", { class: "dim", textContent: visible(series.runbook) }) : null),
          el("td", { textContent: series.healthy ? healthyText(series) : "" }),
          el("td", { textContent: visible(series.tags.join(", ")) }),
          el("td", { class: "n", textContent: shown(series, last(series)) }));
      })));
  if (RUN.profile) $("#profile").append(el("details", {}, el("summary", { textContent: "The profile in effect" }), appendText(el("pre", { class: "txt" }), RUN.profile)));
}
