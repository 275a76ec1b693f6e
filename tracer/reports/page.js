"use strict";

// A cell sorts by its number where it has one, else by its text.
const valueOf = (row, column) => {
  const cell = row.cells[column];
  return cell.dataset.number === undefined ? cell.textContent : Number(cell.dataset.number);
};

const compare = (a, b) =>
  typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });

// A click sorts by a column, numbers from the largest; a second one turns that round; a third gives the order of the report again.
function sortBy(table, heads, column) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const first = rows.some((row) => row.cells[column].dataset.number !== undefined) ? "descending" : "ascending";
  const second = first === "descending" ? "ascending" : "descending";
  const order = { none: first, [first]: second, [second]: "none" }[heads[column].getAttribute("aria-sort")];
  heads.forEach((head, i) => head.setAttribute("aria-sort", i === column ? order : "none"));
  const sign = order === "descending" ? -1 : 1;
  rows.sort((a, b) =>
    order === "none"
      ? Number(a.dataset.position) - Number(b.dataset.position)
      : sign * compare(valueOf(a, column), valueOf(b, column)),
  );
  body.append(...rows);
}

// Only rows that hold every word of the search are shown.
function search(table, text, count) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [...table.tBodies[0].rows];
  rows.forEach((row) => {
    const line = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => line.includes(word));
  });
  count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
}

document.querySelectorAll("section.tabled").forEach((section) => {
  const table = section.querySelector("table");
  [...table.tBodies[0].rows].forEach((row, position) => {
    row.dataset.position = position;
  });
  const heads = [...table.tHead.rows[0].cells];
  const input = section.querySelector("input");
  const count = section.querySelector("output");
  heads.forEach((head, column) => {
    head.setAttribute("aria-sort", "none");
    head.querySelector("button").addEventListener("click", () => sortBy(table, heads, column));
  });
  input.addEventListener("input", () => search(table, input.value, count));
  search(table, input.value, count);
});
