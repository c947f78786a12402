"use strict";

// Charts. A specification has no size: the plot takes the width of its column, and is drawn anew when that changes.
const CHARTS = JSON.parse(document.getElementById("charts").textContent);
const LETTER = 6.8, SYMBOL = 44; // pixels of a legend's label and symbol
const TOUCHED = window.matchMedia("(pointer: coarse)").matches; // a finger scrolls the page, a mouse moves the chart
const ZOOM = { name: "zoom", select: { type: "interval", zoom: "wheel![event.shiftKey]" }, bind: "scales" };
const tooltip = document.body.appendChild(Object.assign(document.createElement("div"), { className: "tooltip", hidden: true }));
const table = document.getElementById("all");

// A mark of an operating point has that point's row of the table as its tooltip; other marks bring their text.
function tooltipText(value) {
  if (value.point === undefined) return value.text;
  const row = document.getElementById(`point-${value.point}`);
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const lines = [...row.cells].map((cell, column) => (column < 3 ? cell.textContent : `${names[column]}: ${cell.textContent}`));
  return lines.filter((line) => !/: –?\s*$/.test(line)).map((line) => line.trim()).join("\n");
}

function showTooltip(handler, event, item, value) {
  tooltip.hidden = !value;
  if (!value) return;
  tooltip.textContent = tooltipText(value);
  const right = event.clientX + 14 + tooltip.offsetWidth > window.innerWidth;
  tooltip.style.left = `${right ? Math.max(4, event.clientX - 14 - tooltip.offsetWidth) : event.clientX + 14}px`;
  tooltip.style.top = `${Math.min(event.clientY + 14, window.innerHeight - tooltip.offsetHeight - 4)}px`;
}

async function draw(element) {
  const { usermeta, ...spec } = CHARTS.panels[element.dataset.figure][element.dataset.panel];
  const width = element.clientWidth, side = Math.min(460, width - 60);
  const columns = Math.max(1, Math.floor((width - 60) / (usermeta.letters * LETTER + SYMBOL)));
  const size = usermeta.square ? { width: side, height: side } : { width, height: usermeta.height };
  const autosize = { type: usermeta.square ? "pad" : "fit-x", contains: "padding" };
  const moved = usermeta.zoom && !TOUCHED ? spec.layer.find(({ encoding }) => encoding.x?.field && encoding.y?.field) : null;
  const layer = spec.layer.map((one) => (one === moved ? { ...one, params: [ZOOM] } : one));
  const config = { ...CHARTS.config, legend: { ...CHARTS.config.legend, columns } };
  const whole = { ...spec, ...size, padding: { left: 4, right: 14, top: 4, bottom: 4 }, autosize, layer, config, datasets: CHARTS.datasets };
  const { view } = await vegaEmbed(element, whole, { mode: "vega-lite", renderer: "svg", actions: false, tooltip: showTooltip });
  view.addEventListener("click", (event, item) => {
    if (item?.datum?.point !== undefined) window.location.hash = `point-${item.datum.point}`;
  });
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

async function drawAll() {
  const script = document.createElement("script");
  script.textContent = await unpack(document.getElementById("vega").textContent);
  document.head.append(script);
  const widths = new Map();
  const observer = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (widths.get(target) !== target.clientWidth) draw(target);
      widths.set(target, target.clientWidth);
    }
  });
  document.querySelectorAll(".panel").forEach((element) => observer.observe(element));
}

drawAll();

// The table of all points: a click on a heading sorts, words filter, missing numbers come last.
const body = table.tBodies[0];
const filter = document.getElementById("filter");
const timedOnly = document.getElementById("timed");

function compare(column, sign) {
  const text = (row) => row.cells[column].textContent.trim();
  return (first, second) => {
    const [one, other] = [parseFloat(text(first)), parseFloat(text(second))];
    if (isNaN(one) && isNaN(other)) return sign * text(first).localeCompare(text(second), "en", { numeric: true });
    if (isNaN(one) || isNaN(other)) return isNaN(one) ? 1 : -1;
    return sign * (one - other);
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

function applyFilter() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const row of body.rows) {
    const text = ["", ...[...row.cells].map((cell) => cell.textContent)].join(" ").toLowerCase();
    // A word is matched from its beginning: "aligned" does not find "unaligned".
    const fits = words.every((word) => text.includes(` ${word}`)) && (!timedOnly.checked || row.classList.contains("timed"));
    row.hidden = !fits;
    count += fits;
  }
  document.getElementById("shown").textContent = `${count} of ${body.rows.length} points`;
}

filter.addEventListener("input", applyFilter);
timedOnly.addEventListener("change", applyFilter);
applyFilter();
