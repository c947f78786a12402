"use strict";

// Each panel's specification stands behind its empty element; heights grow with the legend, which wraps on narrow screens.
// No bar of tools: one of them would send the chart to a server. A finger scrolls the page, a mouse zooms by dragging.
const CONFIG = { responsive: true, displayModeBar: false, showSendToCloud: false, showLink: false };
const TOUCHED = window.matchMedia("(pointer: coarse)").matches;

function legendHeight(spec, width) {
  const names = spec.layout.showlegend ? spec.data.filter((trace) => trace.showlegend).map((trace) => trace.name) : [];
  if (names.length === 0) return 0;
  const column = Math.max(...names.map((name) => name.length)) * 6.3 + 48;
  const rows = Math.ceil(names.length / Math.max(1, Math.floor((width - 70) / column)));
  return 24 + rows * 20;
}

function drawPanel(element) {
  const spec = JSON.parse(element.nextElementSibling.textContent);
  const legend = legendHeight(spec, element.clientWidth);
  const square = element.classList.contains("square") ? Math.min(480, element.clientWidth) : spec.height;
  const plot = element.classList.contains("tall") ? 460 : square;
  spec.layout.height = plot + legend;
  spec.layout.margin.b = 52 + legend;
  spec.layout.legend.y = -60 / (plot - spec.layout.margin.t - 52);
  if (TOUCHED) spec.layout.dragmode = false;
  Plotly.newPlot(element, spec.data, spec.layout, CONFIG);
}

document.querySelectorAll(".panel").forEach(drawPanel);

// The table of all points: a click on a heading sorts, words filter by every word, missing numbers come last.
const table = document.getElementById("all");
const body = table.tBodies[0];
const filter = document.getElementById("filter");
const timedOnly = document.getElementById("timed");

function compare(column, sign) {
  const value = (row) => row.cells[column].dataset.value;
  return (first, second) => {
    const [one, other] = [value(first), value(second)];
    if (one === undefined && other === undefined) {
      return sign * first.cells[column].textContent.localeCompare(second.cells[column].textContent, "en", { numeric: true });
    }
    if (one === undefined || other === undefined) return one === undefined ? 1 : -1;
    return sign * (Number(one) - Number(other));
  };
}

table.tHead.addEventListener("click", (event) => {
  const heading = event.target.closest("th");
  if (!heading) return;
  const downwards = heading.getAttribute("aria-sort") !== "descending";
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", downwards ? "descending" : "ascending");
  body.append(...[...body.rows].sort(compare(heading.cellIndex, downwards ? -1 : 1)));
});

function show() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const row of body.rows) {
    const text = ["", ...[...row.cells].map((cell) => cell.textContent)].join(" ").toLowerCase();
    // A word counts from its beginning: "aligned" is not to find "unaligned".
    const fits = words.every((word) => text.includes(` ${word}`)) && (!timedOnly.checked || row.classList.contains("timed"));
    row.hidden = !fits;
    count += fits;
  }
  document.getElementById("shown").textContent = `${count} of ${body.rows.length} points`;
}

filter.addEventListener("input", show);
timedOnly.addEventListener("change", show);
show();
