// Saves the listed samples as a CSV file, with all columns, in the order of the list.

/** A cell of CSV: quoted if necessary, and empty if the value is missing. */
function csvCell(value) {
  const text = value == null ? "" : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Rows of the table as CSV (RFC 4180), with complete texts. */
async function csvOf(rows) {
  const { plain, long } = state.table;
  const short = [...new Set(["step", "mode", ...plain])].filter((name) => state.columns[name]);
  const lines = [[...short, ...long]];
  for (const row of rows) {
    const texts = await textsOf(row);
    lines.push([...short.map((name) => state.columns[name][row]), ...long.map((name) => (texts[name] == null ? null : spokenText(texts[name])))]);
  }
  return lines.map((line) => `${line.map(csvCell).join(",")}\r\n`).join("");
}

/** Save the listed samples, in the order of the table if it is open. */
async function saveCsv() {
  const text = await csvOf(finder.view === "table" ? rowsInTable() : state.rows);
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  el("a", { href: address, download: `${state.table.run.name}-${state.table.name}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
