// On a phone a wide table, of four columns or with long names, becomes a list of its rows, each cell with the heading of its column (extra.css).
for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
  const headings = [...table.querySelectorAll("th")].map((cell) => cell.textContent);
  const words = [...table.querySelectorAll("td")].flatMap((cell) => cell.textContent.split(/\s/));
  if (headings.length < 4 && words.every((word) => word.length < 24)) continue;
  table.dataset.wide = "";
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.cells].forEach((cell, column) => { cell.dataset.heading = headings[column]; });
  }
}
