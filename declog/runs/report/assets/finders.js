// Ways to find a sample beside the list: a sortable table, a scatter plot of two columns, and the prompts of the run.

const SHOWN_ROWS = 200; // the rows of the table until the reader asks for more
const POINT = 3.5; // the radius of a point, and REACH the greatest distance of a click, in pixels
const REACH = 12;
const finder = { view: "", sort: null, rows: SHOWN_ROWS, x: null, y: null };

const FINDERS = { table: sampleTable, scatter: scatter, prompts: promptTable };

/** Connect the buttons; each opens one of the finders and closes the others. */
function finders() {
  $("#csv").addEventListener("click", saveCsv);
  for (const button of $$("#finders button[value]")) {
    button.addEventListener("click", () => {
      finder.view = finder.view === button.value ? "" : button.value;
      showFinder();
    });
  }
}

function showFinder() {
  const possible = { table: true, scatter: numbersOf().length > 1, prompts: Boolean(state.columns._asked && state.table.score) };
  if (!possible[finder.view]) finder.view = "";
  for (const button of $$("#finders button[value]")) {
    button.hidden = !possible[button.value];
    button.setAttribute("aria-pressed", String(button.value === finder.view));
  }
  $("#finder").replaceChildren(...(finder.view ? [FINDERS[finder.view]()] : []));
}

/** The columns of the table: step, score, group, and the other short columns. */
function shortColumns() {
  const { table, columns } = state;
  const stamps = ["step", "mode", "group", "row"].filter((name) => columns[name]);
  const rest = table.plain.filter((name) => columns[name] && !stamps.includes(name) && name !== table.score && !/^declog_|^run_id$/.test(name));
  return [...new Set(["step", table.score, ...stamps.slice(1), ...rest, "_length"].filter(Boolean))];
}

const titleOf = (column) => (column === "_length" ? "characters" : column);
const numbersOf = () => shortColumns().filter((name) => state.columns[name].some((value) => typeof value === "number"));

/** Sort rows by a column, missing values last. */
function sortedBy(rows, column, down) {
  const values = state.columns[column];
  const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  return [...rows].sort((a, b) => missing(values[a]) - missing(values[b]) || (down ? -1 : 1) * order(values[a], values[b]) || a - b);
}

/** The listed rows, in the order of the table. */
function rowsInTable() {
  const { sort } = finder;
  return sort && shortColumns().includes(sort.column) ? sortedBy(state.rows, sort.column, sort.down) : state.rows;
}

function sampleTable() {
  const columns = shortColumns();
  const rows = rowsInTable();
  const onsort = (next) => {
    finder.sort = next;
    showFinder();
  };
  const cell = (name, row) => {
    const value = state.columns[name][row];
    if (name === state.table.score) return el("td", { class: "n" }, scoreBadge(value));
    return el("td", { class: typeof value === "number" ? "n" : "", textContent: typeof value === "number" ? number(value) : visible(String(value ?? "–")) });
  };
  const body = rows.slice(0, finder.rows).map((row) =>
    el("tr", { data: { row }, onclick: () => openRow(row, true), class: "open" }, columns.map((name) => cell(name, row)), el("td", { class: "preview" }, appendText(el("span"), state.columns._preview[row]))));
  const head = el("tr", {}, columns.map((name) => sortHead(name, titleOf(name), finder.sort, onsort)), el("th", { textContent: state.table.main ?? "" }));
  const more = rows.length > finder.rows && el("button", { class: "btn", type: "button", textContent: `${plural(rows.length - finder.rows, "more row")}`, onclick: () => {
    finder.rows *= 4;
    showFinder();
  } });
  return el("div", { class: "wide tall" }, el("table", { class: "samples" }, el("thead", {}, head), el("tbody", {}, body)), more || null);
}

// -- two columns

function scatter() {
  const names = numbersOf();
  const { score } = state.table;
  if (!names.includes(finder.y)) finder.y = score ?? names.at(-1);
  if (!names.includes(finder.x)) finder.x = ["length", "_length"].find((name) => names.includes(name) && name !== finder.y) ?? names.find((name) => name !== finder.y);
  const choose = (axis) => {
    const select = el("select", { "aria-label": `${axis} axis`, onchange: (event) => {
      finder[axis] = event.target.value;
      showFinder();
    } }, names.map((name) => el("option", { value: name, textContent: visible(titleOf(name)) })));
    select.value = finder[axis];
    return select;
  };
  const canvas = el("canvas", { role: "img", "aria-label": visible(`${titleOf(finder.y)} by ${titleOf(finder.x)}, ${plural(state.rows.length, "sample")}`) });
  const box = el("div", { class: "scatter" }, el("div", { class: "controls" }, el("label", {}, choose("y"), "by", choose("x")), el("span", { class: "dim", textContent: "light: early steps, dark: late ones; a point opens its sample" })), canvas);
  const points = scatterPoints();
  requestAnimationFrame(() => paintScatter(canvas, points));
  const nearest = (event) => {
    const near = points.map((point) => [Math.hypot(point.px - event.offsetX, point.py - event.offsetY), point]).sort((a, b) => a[0] - b[0])[0];
    return near && near[0] <= REACH ? near[1] : null;
  };
  canvas.addEventListener("mousemove", (event) => {
    const point = nearest(event);
    if (!point) return hideTip();
    const line = (name) => el("i", { textContent: `${visible(titleOf(name))} ${number(state.columns[name][point.row])}` });
    showTip([el("b", { textContent: where(point.row) }), line(finder.x), line(finder.y), el("span", { textContent: visible(state.columns._preview[point.row]) })], { left: event.clientX + 12, top: event.clientY - 8, bottom: event.clientY + 8 });
  });
  canvas.addEventListener("mouseleave", hideTip);
  canvas.addEventListener("click", (event) => {
    const point = nearest(event);
    if (point) openRow(point.row, true);
  });
  return box;
}

/** The rows that have both numbers, as {row, x, y, late}; `late` grows with the step from 0 to 1. */
function scatterPoints() {
  const { [finder.x]: xs, [finder.y]: ys, step } = state.columns;
  const rows = state.rows.filter((row) => Number.isFinite(xs[row]) && Number.isFinite(ys[row]));
  const [first, end] = range(rows.map((row) => step[row]));
  return rows.map((row) => ({ row, x: xs[row], y: ys[row], late: (step[row] - first) / (end - first || 1) }));
}

/** Draw the points, and set the position `px`, `py` of each on the canvas. */
function paintScatter(canvas, points) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  Object.assign(canvas, { width: width * devicePixelRatio, height: height * devicePixelRatio });
  const context = canvas.getContext("2d");
  context.scale(devicePixelRatio, devicePixelRatio);
  const [left, top, right, bottom] = [58, 10, width - 12, height - 26];
  const [[x0, x1], [y0, y1]] = [range(points.map((point) => point.x)), range(points.map((point) => point.y))];
  const ink = cssVariable("--dim");
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = ink;
  context.textAlign = "right";
  for (const [value, at] of [[y1, top + 8], [y0, bottom]]) if (Number.isFinite(value)) context.fillText(number(value), left - 8, at);
  context.fillText(Number.isFinite(x1) ? number(x1) : "", right, height - 8);
  context.textAlign = "left";
  context.fillText(Number.isFinite(x0) ? number(x0) : "", left, height - 8);
  context.strokeStyle = cssVariable("--line");
  context.strokeRect(left - 4, top - 4, right - left + 8, bottom - top + 8);
  const colour = cssVariable("--accent");
  for (const point of points) {
    point.px = left + ((point.x - x0) / (x1 - x0 || 1)) * (right - left);
    point.py = bottom - ((point.y - y0) / (y1 - y0 || 1)) * (bottom - top);
    context.fillStyle = faded(colour, 0.18 + 0.6 * point.late);
    context.beginPath();
    context.arc(point.px, point.py, POINT, 0, 2 * Math.PI);
    context.fill();
  }
}

// -- prompts

/** A summary of each prompt, as `prompts_of` in Python: a solved sample has the best score of the table. */
function promptsOf(rows) {
  const { _asked: numbers, step } = state.columns;
  const [, best] = state.scores;
  const byPrompt = new Map();
  for (const row of rows) byPrompt.set(numbers[row], [...(byPrompt.get(numbers[row]) ?? []), row]);
  return [...byPrompt.values()].map((all) => {
    const inOrder = [...all].sort((a, b) => step[a] - step[b]);
    const scores = inOrder.map(scoreOf).filter((score) => !missing(score));
    const solved = inOrder.filter((row) => !missing(scoreOf(row)) && scoreOf(row) >= best);
    const half = scores.length >> 1;
    return {
      row: inOrder.at(-1), attempts: all.length, mean: scores.length ? mean(scores) : null, best: scores.length ? Math.max(...scores) : null, solved: solved.length / all.length,
      firstSolved: solved.length ? step[solved[0]] : NaN, trend: half ? mean(scores.slice(half)) - mean(scores.slice(0, half)) : NaN,
    };
  });
}

const PROMPT_COLUMNS = { attempts: "attempts", mean: "mean", best: "best", solved: "solved", firstSolved: "first solved", trend: "trend" };

/** Order prompts: the never solved first, then by the mean score. */
const leastSolved = (a, b) => (a.solved > 0) - (b.solved > 0) || missing(a.mean) - missing(b.mean) || a.mean - b.mean;

function promptTable() {
  const sort = finder.sort?.column in PROMPT_COLUMNS ? finder.sort : null;
  const order = (a, b) => missing(a[sort.column]) - missing(b[sort.column]) || (sort.down ? -1 : 1) * (a[sort.column] - b[sort.column]);
  const prompts = promptsOf(state.rows).sort(sort ? order : leastSolved);
  const onsort = (next) => {
    finder.sort = next;
    showFinder();
  };
  const never = prompts.filter((prompt) => !prompt.solved).length;
  const cells = (prompt) => [number(prompt.attempts), number(prompt.mean), number(prompt.best), `${number(Math.round(100 * prompt.solved))} %`, Number.isNaN(prompt.firstSolved) ? "never" : `step ${prompt.firstSolved}`, Number.isNaN(prompt.trend) ? "–" : signed(number(prompt.trend))];
  const body = prompts.slice(0, finder.rows).map((prompt) =>
    el("tr", { data: { row: prompt.row }, class: "open", onclick: () => openRow(prompt.row, true) },
      el("td", { class: "preview" }, appendText(el("span"), state.columns._prompt[prompt.row])), cells(prompt).map((text) => el("td", { class: "n", textContent: text }))));
  const head = el("tr", {}, el("th", { textContent: "prompt" }), Object.entries(PROMPT_COLUMNS).map(([name, title]) => sortHead(name, title, sort, onsort)));
  return el("div", { class: "wide tall" },
    el("p", { class: "dim", textContent: `${plural(prompts.length, "prompt")}, ${never} never solved: solved is a score of ${number(state.scores[1])}, the best of this table; trend is the mean of the later half of the attempts less that of the earlier` }),
    el("table", { class: "samples" }, el("thead", {}, head), el("tbody", {}, body)));
}
