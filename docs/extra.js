// On a phone a wide table becomes a list of its rows, each cell with the heading of its column (extra.css).
for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
  const headings = [...table.querySelectorAll("th")].map((cell) => cell.textContent);
  if (headings.length < 4) continue;
  table.dataset.wide = "";
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.cells].forEach((cell, column) => { cell.dataset.heading = headings[column]; });
  }
}
