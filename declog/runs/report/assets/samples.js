// Samples: a list with order, filters and search, and beside it one complete row, or its group side by side.

const ROW_HEIGHT = 86; // the height of an entry of the list, as in page.css
const state = { table: null, columns: null, rows: [], selected: -1, order: "", step: "", mode: "", query: "", where: "", side: false };
let filtering = 0; // the number of the latest call of applyFilters

const ORDERS = { worst: "worst first", best: "best first", step: "by step", latest: "latest first", longest: "longest first" };

/** Go to the samples nearest to a step, and mark the step in the charts; without samples, only mark it. */
function goToStep(step) {
  if (!Number.isFinite(step)) return;
  if (!state.table) return pin(step);
  $("#bymode").value = state.mode = ""; // the step may have samples of another mode only
  const steps = [...new Set(state.columns.step)];
  state.step = String(steps.reduce((best, candidate) => (Math.abs(candidate - step) < Math.abs(best - step) ? candidate : best), steps[0]));
  $("#bystep").value = state.step;
  $("#search").value = state.query = $("#where").value = state.where = "";
  pin(step);
  applyFilters();
  $("#samples").scrollIntoView();
}

async function samples() {
  const tables = REPORT.runs.flatMap((run, index) => run.tables.map((table) => ({ ...table, run, id: index ? `${index + 1}:${table.name}` : table.name })));
  if (!tables.length) return hideSection("samples");
  state.tables = tables;
  const named = (table) => `${visible(table.name)}${OTHERS.length ? ` · ${visible(table.run.label)}` : ""} (${table.rows})`;
  $("#bytable").append(...tables.map((table) => el("option", { value: table.id, textContent: named(table) })));
  $("#bytable").hidden = tables.length < 2;
  $("#bytable").addEventListener("change", (event) => openTable(event.target.value));
  const changes = { "#bystep": "step", "#byorder": "order", "#bymode": "mode" };
  for (const [selector, key] of Object.entries(changes)) {
    $(selector).addEventListener("change", (event) => {
      state[key] = event.target.value;
      applyFilters();
    });
  }
  let waiting;
  for (const [selector, key] of [["#search", "query"], ["#where", "where"]]) {
    $(selector).addEventListener("input", (event) => {
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        state[key] = event.target.value;
        applyFilters();
      }, 150);
    });
  }
  finders();
  const list = $("#list");
  list.addEventListener("scroll", paintList);
  list.addEventListener("click", (event) => {
    const item = event.target.closest("li[data-row]");
    if (item) openRow(Number(item.dataset.row));
  });
  list.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") move(event.key === "ArrowDown" ? 1 : -1);
    else if (event.key === "Enter") $("#detail").focus();
    else return;
    event.preventDefault();
  });
  addEventListener("keydown", keyOnPage);
  await openTable(tables[0].id);
}

function keyOnPage(event) {
  if (isTyped(event)) return;
  if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "g") toggleSide();
  else if (event.key === "/") {
    event.preventDefault();
    $("#search").focus();
  }
}

function move(by) {
  const next = state.rows[state.rows.indexOf(state.selected) + by];
  if (next != null) openRow(next, true);
}

function toggleSide() {
  state.side = !state.side;
  if (state.selected >= 0) openRow(state.selected);
}

async function openTable(id) {
  const table = state.tables.find((table) => table.id === id);
  if (!table || table === state.table) return;
  const columns = await jsonOf(table.light);
  for (const name of table.plain) columns[name] &&= columns[name].map((value) => (WORDS.has(value) ? WORDS.get(value) : value));
  Object.assign(state, { table, columns, step: "", mode: "", query: "", where: "", selected: -1 });
  $("#bytable").value = id;
  $("#search").value = $("#where").value = "";
  state.scores = table.score ? range(columns[table.score]) : [0, 0];
  const options = (values, all) => [el("option", { value: "", textContent: all }), ...values.map((value) => el("option", { value, textContent: value }))];
  $("#bystep").replaceChildren(...options([...new Set(columns.step)], "all"));
  const modes = [...new Set(columns.mode)];
  $("#bymode").replaceChildren(...options(modes, "all"));
  $("#bymode").parentNode.hidden = modes.length < 2;
  const orders = Object.entries(ORDERS).filter(([order]) => table.score || (order !== "worst" && order !== "best"));
  if (!orders.some(([order]) => order === state.order)) [[state.order]] = orders;
  $("#byorder").replaceChildren(...orders.map(([value, textContent]) => el("option", { value, textContent })));
  $("#byorder").value = state.order;
  await applyFilters();
}

const scoreOf = (row) => (state.table.score ? state.columns[state.table.score][row] : null);

/** The long values of a row, by column. */
async function textsOf(row) {
  const { chunks, chunk } = state.table;
  return (await jsonOf(chunks[Math.floor(row / chunk)]))[row % chunk];
}

/** Yield all texts in a value: a text, a list, a map, or a cell of tokens. */
function* textsIn(value) {
  if (typeof value === "string") yield value;
  else if (isTokens(value)) yield value.tokens.join("");
  else if (value && typeof value === "object") for (const part of Object.values(value)) yield* textsIn(part);
}

async function applyFilters() {
  const call = ++filtering;
  const { table, columns, step, mode } = state;
  let rows = Array.from({ length: table.rows }, (_, row) => row);
  if (step !== "") rows = rows.filter((row) => String(columns.step[row]) === step);
  if (mode !== "") rows = rows.filter((row) => columns.mode[row] === mode);
  rows = await answering(rows);
  if (state.query) {
    const query = state.query.toLowerCase();
    const matching = [];
    for (const row of rows) {
      for (const text of textsIn(await textsOf(row))) {
        if (!text.toLowerCase().includes(query)) continue;
        matching.push(row);
        break;
      }
    }
    rows = matching;
  }
  if (call !== filtering) return; // the reader has typed on
  state.rows = ordered(rows);
  $("#list").scrollTop = 0;
  if (rows.length) await openRow(state.rows[0]);
  else {
    state.selected = -1;
    paintList();
    $("#detail").replaceChildren(el("p", { class: "dim", textContent: "No sample matches." }));
  }
  showFinder();
  $("#found").textContent = `${rows.length} of ${table.rows}`;
}

/** The rows for which the condition is true; if it is not understood, all rows and a message. */
async function answering(rows) {
  const { plain, long } = state.table;
  $("#fault").hidden = true;
  if (!state.where.trim()) return rows;
  try {
    const { names, test } = condition(state.where, [...plain, ...long]);
    const texts = long.filter((name) => names.has(name));
    const kept = [];
    for (const row of rows) {
      const values = Object.fromEntries(plain.map((name) => [name, state.columns[name]?.[row]]));
      if (texts.length) Object.assign(values, Object.fromEntries(Object.entries(await textsOf(row)).map(([name, value]) => [name, value == null ? null : spokenText(value)])));
      if (test(values)) kept.push(row);
    }
    return kept;
  } catch (error) {
    Object.assign($("#fault"), { hidden: false, textContent: error.message });
    return rows;
  }
}

function ordered(rows) {
  const { step, _length: length } = state.columns;
  const score = (row) => scoreOf(row) ?? NaN;
  const missingLast = (a, b) => (Number.isNaN(a) ? 1 : 0) - (Number.isNaN(b) ? 1 : 0);
  const latest = (a, b) => step[b] - step[a] || a - b;
  const orders = {
    worst: (a, b) => missingLast(score(a), score(b)) || score(a) - score(b) || latest(a, b),
    best: (a, b) => missingLast(score(a), score(b)) || score(b) - score(a) || latest(a, b),
    step: (a, b) => a - b,
    latest,
    longest: (a, b) => length[b] - length[a] || latest(a, b),
  };
  return [...rows].sort(orders[state.order]);
}

// -- the list

/** Show the entries of the list that are in view. */
function paintList() {
  const list = $("#list");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW_HEIGHT) - 4);
  const seen = state.rows.slice(first, first + Math.ceil(list.clientHeight / ROW_HEIGHT) + 9);
  const end = el("li", { class: "end", role: "presentation" });
  end.style.top = `${state.rows.length * ROW_HEIGHT}px`;
  list.replaceChildren(...seen.map((row, i) => listEntry(row, first + i)), end);
  const selected = $("#list li.on");
  list.setAttribute("aria-activedescendant", selected ? selected.id : "");
}

function listEntry(row, position) {
  const { columns } = state;
  const on = row === state.selected;
  const item = el("li", { id: `row${row}`, class: on ? "on" : "", role: "option", "aria-selected": String(on), "aria-posinset": position + 1, "aria-setsize": state.rows.length, data: { row } },
    el("div", { class: "facts" }, state.table.score ? scoreBadge(scoreOf(row)) : null, el("span", { textContent: where(row) }), el("span", { textContent: lengthText(row) })),
    columns._prompt ? appendText(el("div", { class: "asked" }), columns._prompt[row]) : null,
    appendText(el("div", { class: "text" }), columns._preview[row] || "no text"));
  item.style.top = `${position * ROW_HEIGHT}px`;
  return item;
}

function where(row) {
  const mode = state.columns.mode[row];
  return `step ${state.columns.step[row]}${mode === "train" ? "" : ` · ${visible(mode)}`}`;
}

function lengthText(row) {
  const { length, _length: characters } = state.columns;
  return length && length[row] != null ? `${number(length[row])} tok` : `${characters[row].toLocaleString("en")} chars`;
}

function scoreColour(score) {
  const [low, high] = state.scores;
  if (score == null || Number.isNaN(score) || !(high > low)) return "";
  const share = (score - low) / (high - low);
  return share < 0.5 ? faded(cssVariable("--bad"), 0.12 + 0.3 * (1 - 2 * share)) : faded(cssVariable("--good"), 0.12 + 0.3 * (2 * share - 1));
}

function scoreBadge(score) {
  const badge = el("span", { class: "score", title: state.table.score, textContent: number(score) });
  badge.style.backgroundColor = scoreColour(score);
  return badge;
}

// -- one row

async function openRow(row, scroll = false) {
  state.selected = row;
  const texts = await textsOf(row);
  if (state.selected !== row) return;
  if (scroll) scrollListTo(row);
  paintList();
  const detail = $("#detail");
  const mates = matesOf(row);
  const side = state.side && mates.length > 1;
  detail.replaceChildren(rowHead(row, mates, side));
  detail.scrollTop = 0;
  if (side) return showGroup(detail, row, texts, mates);
  detail.append(rowFacts(row), ...rowTexts(row, texts));
  const course = promptOverRun(row);
  if (course) detail.append(el("h3", { textContent: "this prompt over the run" }), course);
}

function scrollListTo(row) {
  const list = $("#list");
  const top = state.rows.indexOf(row) * ROW_HEIGHT;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + ROW_HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW_HEIGHT - list.clientHeight;
}

/** The rows of the same group at the same step. */
function matesOf(row) {
  const { _group: group } = state.columns;
  return group ? group.flatMap((id, i) => (id === group[row] ? [i] : [])) : [row];
}

function rowHead(row, mates, side) {
  const copy = (event) => {
    const hash = hashOf({ sample: `${state.table.id}/${row}` });
    history.replaceState(null, "", hash);
    navigator.clipboard?.writeText(location.href).catch(() => {}); // the browser may refuse this to a page from a file
    event.target.textContent = "link is in the address bar";
  };
  return el("div", { class: "head" },
    state.table.score ? scoreBadge(scoreOf(row)) : null,
    el("b", { textContent: where(row) }),
    el("span", { class: "dim", textContent: placeInStep(row) }),
    el("span", { class: "space" }),
    mates.length > 1 ? el("button", { class: "btn", type: "button", "aria-pressed": String(side), textContent: `group of ${mates.length} side by side`, onclick: toggleSide }) : null,
    el("button", { class: "btn", type: "button", textContent: "link", title: "a link to this row", onclick: copy }));
}

/** The group and the number of a row within its step, if the table has these columns. */
function placeInStep(row) {
  const { group, row: number } = state.columns;
  const words = [["group", group], ["row", number]].filter(([, column]) => column?.[row] != null);
  return words.map(([word, column]) => `${word} ${column[row]}`).join(", ");
}

function rowFacts(row) {
  const hidden = new Set(["step", "mode", "group", "row", "declog_step", "run_id", "declog_run_id", state.table.score]);
  const facts = state.table.plain.filter((name) => !hidden.has(name));
  const value = (cell) => (typeof cell === "number" ? number(cell) : visible(String(cell ?? "–")));
  return el("div", { class: "facts" }, facts.map((name) => el("div", { class: "fact" }, el("span", { textContent: visible(name) }), value(state.columns[name][row]))));
}

/** All texts of a row, complete; tokens replace the text that they add up to. */
function rowTexts(row, texts) {
  const coloured = Object.entries(texts).find(([, value]) => isTokens(value));
  const made = coloured && coloured[1].tokens.join("");
  const fields = [];
  for (const name of state.table.long) {
    const value = texts[name];
    if (value == null || (coloured && name !== coloured[0] && value === made)) continue;
    if (isTokens(value)) {
      const whole = state.table.long.find((other) => texts[other] === made);
      const { body, tools } = tokenText(value, row);
      fields.push(field(whole ?? name, kindOf(whole ?? name), made, body, tools));
    } else if (isConversation(value)) fields.push(conversation(name, value));
    else fields.push(field(name, kindOf(name), asText(value)));
  }
  return fields;
}

const kindOf = (name) => (name === state.table.main ? "completion" : /prompt|question|input/.test(name) ? "prompt" : "");
const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 1));

function field(name, kind, text, body = null, tools = null) {
  const count = [...text].length;
  return el("div", { class: `field ${kind}`, data: { column: name } },
    el("div", { class: "label" }, el("span", { textContent: visible(name) }), el("span", { textContent: plural(count, "character") }), tools),
    body ?? appendText(el("div", { class: "txt", dir: "auto" }), text, state.query));
}

/** A value of a row as one text; a conversation is its messages, each after its role. */
function spokenText(value) {
  if (isConversation(value)) return value.map((message) => `[${message.role}]\n${messageText(message)}`).join("\n\n");
  return isTokens(value) ? value.tokens.join("") : value == null ? "" : asText(value);
}

/** The rows of the same prompt by step, best first in each step; null if all are of one step. */
function promptOverRun(row) {
  const { _asked: asked, step } = state.columns;
  if (!asked) return null;
  const kin = asked.flatMap((prompt, i) => (prompt === asked[row] && state.columns.mode[i] === state.columns.mode[row] ? [i] : []));
  const steps = [...new Set(kin.map((index) => step[index]))].sort((a, b) => a - b);
  if (steps.length < 2) return null;
  return el("div", { class: "overrun" }, steps.flatMap((at) => {
    const rows = kin.filter((index) => step[index] === at).sort((a, b) => (scoreOf(b) ?? 0) - (scoreOf(a) ?? 0));
    const buttons = rows.map((index) => {
      const button = el("button", { class: `dot ${index === row ? "on" : ""}`, type: "button", textContent: state.table.score ? number(scoreOf(index)) : index, title: `row ${index}`, onclick: () => openRow(index, true) });
      button.style.backgroundColor = scoreColour(scoreOf(index));
      return button;
    });
    const average = state.table.score ? `mean ${number(Number(mean(rows.map(scoreOf)).toFixed(3)))}` : "";
    return [el("span", { class: "dim", textContent: `step ${at}` }), el("span", { textContent: average }), el("span", {}, buttons)];
  }));
}
