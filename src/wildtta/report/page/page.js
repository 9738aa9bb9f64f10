"use strict";
const root = document.documentElement;
const remembered = (() => { try { return localStorage.getItem("wildtta-theme"); } catch { return null; } })();
if (remembered) root.dataset.theme = remembered;

const isDark = () =>
  root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
const themeButton = document.getElementById("theme");
const nameTheme = () => { themeButton.textContent = isDark() ? "Light" : "Dark"; };
themeButton.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("wildtta-theme", root.dataset.theme); } catch { /* a file may not store anything */ }
  nameTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
nameTheme();

/* Sorting: numbers first fall, then rise, then return to the paper's order; places without a number stay last. */
function sortBy(button) {
  const heading = button.closest("th");
  const table = heading.closest("table");
  const body = table.tBodies[0];
  const place = heading.cellIndex;
  const rows = [...body.rows];
  rows.forEach((row, i) => { row.dataset.order ??= i; });
  const numeric = place > 0;
  const steps = numeric ? ["descending", "ascending", "none"] : ["ascending", "descending", "none"];
  const next = steps[(steps.indexOf(heading.getAttribute("aria-sort") ?? "none") + 1) % 3];
  table.querySelectorAll("th[aria-sort]").forEach((th) => th.removeAttribute("aria-sort"));
  if (next !== "none") heading.setAttribute("aria-sort", next);
  const sign = next === "descending" ? -1 : 1;
  const value = (row) => row.cells[place]?.dataset.value;
  rows.sort((a, b) => {
    if (next === "none") return a.dataset.order - b.dataset.order;
    const [x, y] = [value(a), value(b)];
    if (x === undefined || y === undefined) return (x === undefined) - (y === undefined) || a.dataset.order - b.dataset.order;
    return sign * (numeric ? x - y : x.localeCompare(y)) || a.dataset.order - b.dataset.order;
  });
  body.replaceChildren(...rows);
  body.classList.toggle("sorted", next !== "none");
}
document.querySelectorAll("table.sortable thead button").forEach((button) =>
  button.addEventListener("click", () => sortBy(button)));

/* Where a number comes from. */
const runs = JSON.parse(document.getElementById("runs").textContent);
const dialog = document.getElementById("source");
const make = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });
function showSource(button) {
  const list = dialog.querySelector(".runs");
  list.replaceChildren();
  dialog.querySelector("b").textContent = button.title || "Where this number comes from";
  for (const key of button.dataset.keys.split(" ")) {
    const run = runs[key];
    if (!run) continue;
    list.append(make("h4", run.what), make("p", run.told), make("pre", run.command));
    const more = document.createElement("details");
    more.append(make("summary", "configuration"), make("pre", JSON.stringify(run.cell, null, 1)));
    list.append(more);
  }
  dialog.showModal();
}
document.addEventListener("click", (event) => {
  const button = event.target.closest(".num");
  if (button) showSource(button);
  if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
});

/* Claims by verdict; tables and figures without such a claim step back. */
document.querySelectorAll("[data-filter]").forEach((button) => button.addEventListener("click", () => {
  const wanted = button.dataset.filter;
  document.querySelectorAll("[data-filter]").forEach((other) => other.setAttribute("aria-pressed", other === button));
  document.querySelectorAll(".claims li").forEach((item) => { item.hidden = wanted !== "all" && item.dataset.status !== wanted; });
  document.querySelectorAll("[data-statuses]").forEach((item) => {
    item.hidden = wanted !== "all" && !item.dataset.statuses.split("|").includes(wanted);
  });
}));
document.querySelectorAll("[data-toggle-paper]").forEach((button) => button.addEventListener("click", () => {
  const hidden = document.body.classList.toggle("hide-was");
  document.querySelectorAll("[data-toggle-paper]").forEach((other) => other.setAttribute("aria-pressed", !hidden));
}));
