// A table of runs: their states, their core metrics with small curves, their alerts, and the settings that differ.

const MOST_CORE = 6; // the most columns of core metrics
const MOST_SETTINGS = 8; // the most columns of settings
const STATES = { running: "live", finished: "ok", failed: "error", killed: "error" };
const shownBy = { sort: null, filter: "" };

/** The row of the run with an id; undefined if the table does not have it. */
const rowOf = (id) => REPORT.rows.find((row) => row.id === id);

/** The columns: {key, title, kind, value, cell}; `value` gives a row's value for sorting, `cell` the content of its cell. */
function runColumns() {
  const text = (value) => (value == null ? "–" : visible(value));
  const columns = [
    { key: "run", title: "Run", value: (row) => row.folder, cell: runCell },
    { key: "state", title: "State", value: (row) => row.state, cell: (row) => el("span", { class: `badge ${STATES[row.state] ?? ""}`, textContent: text(row.state) }) },
    { key: "last", title: "Last event", kind: "n", value: (row) => row.last, cell: ({ last: at }) => (at == null ? "–" : hint(el("span", { textContent: `${duration(Math.max(0, REPORT.made - at))} ago` }), () => [el("span", { textContent: moment(at) })])) },
    { key: "step", title: "Step", kind: "n", value: (row) => row.step, cell: (row) => number(row.step) },
    { key: "rate", title: "Steps/s", kind: "n", value: (row) => row.rate, cell: (row) => number(row.rate) },
    ...coreColumns(),
    { key: "alerts", title: "Alerts", kind: "n", value: (row) => row.alerts, cell: (row) => (row.alerts ? el("span", { class: row.errors ? "bad" : "out", textContent: number(row.alerts) }) : number(row.alerts)) },
  ];
  for (const { key, values } of REPORT.settings.slice(0, MOST_SETTINGS)) {
    columns.push({ key: `set ${key}`, title: key, code: true, value: ({ folder }) => settingOf(values[folder]), cell: ({ folder }) => (values[folder] == null ? "–" : el("code", { textContent: visible(values[folder]) })) });
  }
  return columns;
}

/** A column for each of the core metrics that most runs have. */
function coreColumns() {
  const counts = new Map();
  for (const { name } of REPORT.rows.flatMap((row) => row.core ?? [])) counts.set(name, (counts.get(name) ?? 0) + 1);
  const names = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a)).slice(0, MOST_CORE);
  return names.map((name) => {
    const of = (row) => row.core?.find((metric) => metric.name === name);
    const first = of(REPORT.rows.find(of));
    return { key: `core ${name}`, title: first.title, kind: "n", value: (row) => of(row)?.last, cell: (row) => coreCell(of(row)) };
  });
}

/** A cell with the last value, red if it is not finite, and a small curve. */
function coreCell(core) {
  if (!core) return "–";
  const value = WORDS.get(core.last) ?? core.last;
  const curve = sparkline({ ...core, others: [] }, 110, 24);
  return el("div", { class: "core" }, el("span", { class: Number.isFinite(value) ? "" : "bad", textContent: number(value) }), curve);
}

/** A link to the run's page, and the run that it is a branch of. */
function runCell(row) {
  if (row.problem) return el("span", {}, visible(row.folder), el("div", { class: "bad", textContent: visible(row.problem) }));
  const notes = row.resumed.map((step) => `resumed at step ${step}`);
  const { parent } = row;
  const branch = parent && (rowOf(parent.run_id) ? el("a", { href: rowOf(parent.run_id).page, textContent: visible(rowOf(parent.run_id).folder) }) : visible(parent.run_id));
  return el("span", {},
    el("a", { href: row.page, textContent: visible(row.folder) }),
    el("div", { class: "dim" }, [row.name, ...notes].map(visible).join(" · ")),
    branch ? el("div", { class: "dim" }, "branch of ", branch, ` behind step ${parent.step}`) : null,
    row.problems.map((problem) => el("div", { class: "out", textContent: visible(problem) })));
}

const settingOf = (value) => (value != null && value.trim() !== "" && Number.isFinite(Number(value)) ? Number(value) : value);

/** Sort rows by a column, missing values last. */
function sortedRuns(rows, columns) {
  const column = columns.find(({ key }) => key === shownBy.sort?.column);
  if (!column) return rows;
  const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  const sortValue = (row) => WORDS.get(column.value(row)) ?? column.value(row);
  return [...rows].sort((a, b) => missing(sortValue(a)) - missing(sortValue(b)) || (shownBy.sort.down ? -1 : 1) * order(sortValue(a), sortValue(b)));
}

/** The text that the filter searches: a run's folder, name, state, problem and settings. */
const wordsOf = (row) => [row.folder, row.name, row.state, row.problem, ...REPORT.settings.map(({ key, values }) => `${key}=${values[row.folder]}`)].join(" ").toLowerCase();

function showRuns() {
  const columns = runColumns();
  const words = shownBy.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = sortedRuns(REPORT.rows.filter((row) => words.every((word) => wordsOf(row).includes(word))), columns);
  const onsort = (sort) => {
    shownBy.sort = sort;
    showRuns();
  };
  const heads = columns.map(({ key, title, kind, code }) => {
    const head = sortHead(key, title, shownBy.sort, onsort);
    head.classList.add(...[kind, code && "setting"].filter(Boolean));
    return head;
  });
  const body = rows.map((row) => el("tr", { data: { folder: row.folder } }, columns.map(({ kind, cell }) => el("td", { class: kind ?? "" }, row.problem && cell !== runCell ? "" : cell(row)))));
  $("#runs").replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, body)));
  const live = REPORT.rows.filter((row) => row.state === "running").length;
  const count = rows.length === REPORT.rows.length ? plural(rows.length, "run") : `${rows.length} of ${plural(REPORT.rows.length, "run")}`;
  $("#sub").replaceChildren([count, live ? `${live} running` : null, `as of ${moment(REPORT.made)}`].filter(Boolean).join(" · "), ...(REPORT.every == null ? [] : [el("span", { id: "age" })]));
}

function main() {
  const reader = before?.reader;
  if (reader) Object.assign(shownBy, reader.shownBy);
  $("#title").textContent = visible(REPORT.name);
  $("#filter").value = shownBy.filter;
  $("#filter").addEventListener("input", (event) => {
    shownBy.filter = event.target.value;
    showRuns();
  });
  showRuns();
  const rest = REPORT.settings.slice(MOST_SETTINGS).map(({ key }) => visible(key));
  if (rest.length) $("#rest").textContent = `They differ in ${plural(rest.length, "more setting")}: ${rest.join(", ")}`;
  if (reader) {
    $("#runs").scrollLeft = reader.left;
    scrollTo({ top: reader.top, behavior: "instant" });
  }
  openAgain(() => ({ shownBy, left: $("#runs").scrollLeft, top: scrollY }));
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}

main();
