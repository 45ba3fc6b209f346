// Shows the samples of a group side by side, best first.

/** Show all rows of a group side by side, best first, each scrolled to its end, where the answer is. */
async function showGroup(detail, row, texts, mates) {
  const { main, long } = state.table;
  const rows = [...mates].sort((a, b) => (scoreOf(b) ?? -Infinity) - (scoreOf(a) ?? -Infinity));
  const all = await Promise.all(rows.map(textsOf));
  if (state.selected !== row) return;
  for (const name of long) if (kindOf(name) === "prompt" && texts[name] != null) detail.append(field(name, "prompt", spokenText(texts[name])));
  const spoken = all.map((columns) => spokenText(columns[main]));
  detail.append(groupSummary(rows, spoken));
  const cards = rows.map((index, i) => groupCard(index, spoken[i], index === row, mean(rows.map(scoreOf))));
  const short = spoken.every((text) => text.length < 200);
  detail.append(el("div", { class: short ? "side short" : "side" }, cards));
  for (const text of $$(".side .txt", detail)) text.scrollTop = text.scrollHeight;
}

function groupSummary(rows, texts) {
  const facts = [];
  const distinct = new Set(texts).size;
  if (state.table.score) {
    const scores = rows.map(scoreOf).filter((score) => score != null);
    const equal = scores.length > 1 && new Set(scores).size === 1;
    facts.push(el("span", { textContent: `mean ${number(mean(scores))}` }));
    if (scores.length > 1) facts.push(el("span", { textContent: `std ${number(deviation(scores))}` }));
    if (equal) facts.push(el("span", { class: "out", textContent: "all equal: this group teaches nothing" }));
  }
  facts.push(el("span", { class: "dim", textContent: plural(distinct, "different completion") }));
  return el("div", { class: "summary" }, facts);
}

function groupCard(row, text, on, average) {
  const score = scoreOf(row);
  const [low, high] = state.scores;
  const bar = el("i");
  bar.style.width = `${((score - low) / (high - low || 1)) * 100}%`;
  const against = !Number.isFinite(score) ? "" : ` · ${signed(number(Number((score - average).toFixed(3))))} vs mean`;
  const open = () => {
    state.side = false;
    openRow(row, true);
  };
  return el("div", { class: `member ${on ? "on" : ""}`, data: { row } },
    el("div", { class: "facts" },
      score == null ? null : scoreBadge(score),
      el("span", { class: "dim", textContent: lengthText(row) + against }),
      el("span", { class: "space" }),
      link("open", open, { "aria-label": `open row ${row}` })),
    score == null ? null : el("div", { class: "bar" }, bar),
    appendText(el("div", { class: "txt", dir: "auto", tabIndex: 0 }), text, state.query));
}
