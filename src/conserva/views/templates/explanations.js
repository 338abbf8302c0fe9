"use strict";
(() => {
const find = id => document.getElementById(id);
const list = document.querySelector(".rows"), rows = Array.from(list.children);
const search = find("search"), sort = find("sort"), target = find("target"), large = find("large");
const value = (row, key) => key in row.dataset ? Number(row.dataset[key]) : -Infinity;
const thousands = count => count.toLocaleString("en");
let texts = null, order = "", timer = 0;

// A row is built when it is opened for the first time.
const build = row => {
  const source = row.querySelector(":scope > noscript");
  if (!source) return;
  const holder = document.createElement("div");
  holder.innerHTML = source.textContent;
  source.replaceWith(holder);
};
list.addEventListener("toggle", event => {
  if (event.target.open && event.target.parentNode === list) build(event.target);
}, true);

const sorted = () => {
  if (sort.value === order) return;
  order = sort.value;
  const [key, sign] = order.split(" ");
  const shown = key ? rows.slice().sort((a, b) => sign * (value(a, key) - value(b, key)) || 0) : rows;
  const place = list.nextSibling, parent = list.parentNode;
  list.remove();  // moving the rows of a list that is not in the document is faster
  list.replaceChildren(...shown);
  parent.insertBefore(list, place);
};

const update = () => {
  sorted();
  const wanted = search.value.toLowerCase().trim();
  if (wanted && !texts) texts = rows.map(row => row.querySelector(".excerpt").textContent.toLowerCase());
  let count = 0;
  rows.forEach((row, i) => {
    const kept = (!wanted || texts[i].includes(wanted)) && (!target.value || row.dataset.target === target.value)
      && (!large.checked || row.dataset.large === "yes");
    if (row.hidden === kept) row.hidden = !kept;
    count += kept;
  });
  find("count").textContent = count === rows.length ? `${thousands(count)} ${list.dataset.noun}`
    : `${thousands(count)} of ${thousands(rows.length)} ${list.dataset.noun}`;
};

const counts = new Map();
for (const row of rows) counts.set(row.dataset.target, (counts.get(row.dataset.target) ?? 0) + 1);
const ranked = Array.from(counts).sort((a, b) => b[1] - a[1]);
for (const [name, count] of ranked) target.append(new Option(`${name} (${thousands(count)})`, name));
for (const key of ["probability", "gap"])
  if (!rows.some(row => key in row.dataset))
    for (const option of Array.from(sort.options)) if (option.value.startsWith(key)) option.remove();
const many = rows.filter(row => row.dataset.large === "yes").length;
find("gaps").append(` (${thousands(many)})`);
find("gaps").hidden = many === 0;
// The list is written row by row, so its verdict is known when all of them are there.
const named = ranked.slice(0, 3).map(([name, count]) => `${thousands(count)} for \u2068${name}\u2069`);
const rest = rows.length - ranked.slice(0, 3).reduce((sum, [, count]) => sum + count, 0);
if (rest) named.push(`${thousands(rest)} for others`);
find("verdict").textContent = `${thousands(rows.length)} ${list.dataset.noun} are explained: `
  + [named.slice(0, -1).join(", "), named.at(-1)].filter(Boolean).join(" and ") + (many ? `; ${thousands(many)} of them with a large gap.` : ".");
find("verdict").hidden = false;
search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(update, 120); });
for (const control of [sort, target, large]) control.addEventListener("change", update);
update();
find("tools").hidden = false;
})();
