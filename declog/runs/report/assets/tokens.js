// Shows a completion token by token, coloured by one of the tokens' values.

const isTokens = (value) => value != null && typeof value === "object" && Array.isArray(value.tokens);
let colouredBy = null; // the chosen value, which holds for all rows

/** The text of a cell {tokens: [...], logprob: [...], ...}, and the buttons that choose its colours. */
function tokenText(cell, row) {
  const names = Object.keys(cell).filter((name) => name !== "tokens" && Array.isArray(cell[name]));
  const spans = cell.tokens.map((token, index) => appendText(el("span", { class: "tk", data: { index } }), token));
  markFound(spans, cell.tokens);
  const body = el("div", { class: "txt tokens", dir: "auto" }, spans);
  const tools = el("span", { class: "tools" });
  const scale = el("span", { class: "scale" });
  const choose = (name) => {
    colouredBy = name;
    for (const button of $$("button", tools)) button.setAttribute("aria-pressed", String(button.dataset.of === name));
    colourTokens(spans, cell[name], scale);
  };
  const buttons = ["none", ...names].map((name) =>
    el("button", { class: "btn", type: "button", textContent: visible(name), data: { of: name }, onclick: () => choose(name) }));
  if (names.length) tools.append("colour by ", ...buttons, scale);
  choose(colouredBy === "none" || names.includes(colouredBy) ? colouredBy : (names[0] ?? "none"));
  body.addEventListener("mouseover", (event) => {
    const span = event.target.closest(".tk");
    if (span) showTip(aboutToken(cell, names, Number(span.dataset.index), row), span.getBoundingClientRect());
  });
  body.addEventListener("mouseleave", hideTip);
  return { body, tools };
}

/** Mark the tokens that contain a hit of the search; a hit may span several tokens. */
function markFound(spans, tokens) {
  const query = state.query.toLowerCase();
  if (!query) return;
  const text = tokens.join("").toLowerCase();
  const ends = [];
  for (let at = text.indexOf(query); at >= 0; at = text.indexOf(query, at + query.length)) ends.push([at, at + query.length]);
  let start = 0;
  tokens.forEach((token, i) => {
    const end = start + token.length;
    if (ends.some(([from, to]) => from < end && to > start)) spans[i].classList.add("found");
    start = end;
  });
}

/** Colour tokens by the sizes of their values, relative to the greatest: red, and teal for negative ones if signs differ. */
function colourTokens(spans, values, scale) {
  scale.textContent = "";
  const finite = (values ?? []).filter(Number.isFinite);
  const both = finite.some((value) => value < 0) && finite.some((value) => value > 0);
  const sizes = finite.map(Math.abs).sort((a, b) => a - b);
  const most = sizes[Math.floor(sizes.length * 0.995)] || sizes.at(-1) || 1;
  spans.forEach((span, i) => {
    const value = values?.[i];
    const colour = both && value < 0 ? cssVariable("--accent") : cssVariable("--bad");
    span.style.backgroundColor = Number.isFinite(value) ? faded(colour, 0.6 * Math.min(1, Math.abs(value) / most)) : "";
  });
  if (finite.length) {
    const [low, high] = range(finite);
    scale.textContent = both ? `teal ${number(low)} · white 0 · red ${number(high)}` : `white 0 · red ${number(-low > high ? low : high)}`;
  }
}

function aboutToken(cell, names, index, row) {
  const lines = [el("b", { textContent: `token ${index}  ${visible(JSON.stringify(cell.tokens[index]))}` })];
  for (const name of names) {
    const value = WORDS.get(cell[name][index]) ?? cell[name][index];
    const probability = /log_?prob/.test(name) && Number.isFinite(value) ? `  (p ${number(Math.exp(value))})` : "";
    lines.push(el("i", { textContent: `${visible(name)}  ${number(value)}${probability}` }));
  }
  const advantage = state.columns.advantage ?? state.columns.advantages;
  if (advantage && !names.includes("advantage")) lines.push(el("i", { textContent: `advantage  ${number(advantage[row])}` }));
  return lines;
}
