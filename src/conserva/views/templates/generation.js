"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const find = id => document.getElementById(id);
const pieces = Array.from(document.querySelectorAll(".piece"));
const text = find("text"), box = find("first"), start = data.start;
let anchor = null, end = null, pinned = false, lit = [];

const number = x => {
  const sign = x < 0 || Object.is(x, -0) ? "-" : "+", size = Math.abs(x);
  if (size >= 0.0005 || size === 0) return sign + size.toFixed(3);
  const [digits, power] = size.toExponential(0).split("e-");
  return `${sign}${digits}e-${power.padStart(2, "0")}`;
};
const percent = x => `${(100 * x).toFixed(1)}%`;
const quoted = token => `\u201c${token}\u201d`;
const hexadecimal = colour => "#" + colour.map(c => c.toString(16).padStart(2, "0")).join("");
const shade = (score, scale, ground) => {
  const share = Math.min(1, Math.abs(score) / scale), full = score > 0 ? data.for : data.against;
  return ground.map((low, i) => Math.round(low + (full[i] - low) * share));
};
const luminance = colour => {
  const [r, g, b] = colour.map(c => c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
// Above this luminance black text has the higher contrast, below it white text.
const ink = colour => luminance(colour) > Math.sqrt(1.05 * 0.05) - 0.05 ? "#000000" : "#ffffff";

// The selection: generated tokens with the sum of their rows of scores, or a token of the prompt with its column.
const selection = () => {
  const [from, to] = [Math.min(anchor, end), Math.max(anchor, end)];
  if (from < start) {
    const scores = new Map();
    data.steps.forEach((step, j) => { if (from < step.scores.length) scores.set(start + j, step.scores[from]); });
    return {from, to: from, scores, steps: []};
  }
  const steps = data.steps.slice(from - start, to - start + 1), scores = new Map();
  for (const step of steps) step.scores.forEach((x, i) => scores.set(i, (scores.get(i) ?? 0) + x));
  return {from, to, scores, steps};
};

const total = (steps, value) => steps.reduce((sum, step) => sum + value(step), 0);
const strongest = scores => Array.from(scores).filter(([, x]) => x !== 0)
  .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, 5)
  .map(([i, x]) => `${quoted(data.features[i])} ${number(x)}`).join(", ");

const clear = () => {
  for (const piece of lit) {
    for (const name of ["--l", "--li", "--d", "--di"]) piece.style.removeProperty(name);
    piece.removeAttribute("data-score");
    piece.removeAttribute("title");
    piece.classList.remove("out");
  }
  lit = [];
  for (const piece of document.querySelectorAll(".piece[aria-selected=true]"))
    piece.setAttribute("aria-selected", "false");
};

const light = (scores, without) => {
  let scale = 0;
  for (const [i, x] of scores) if (i !== without) scale = Math.max(scale, Math.abs(x));
  scale = scale || 1;
  for (const [i, x] of scores) {
    const piece = pieces[i];
    lit.push(piece);
    piece.dataset.score = x.toPrecision(6);
    piece.title = `${data.features[i]} ${number(x)}`;
    if (i === without) { piece.classList.add("out"); continue; }
    for (const [name, ground] of [["l", data.light], ["d", data.dark]]) {
      const colour = shade(x, scale, ground);
      piece.style.setProperty(`--${name}`, hexadecimal(colour));
      piece.style.setProperty(`--${name}i`, ink(colour));
    }
  }
  return scale;
};

const showLedger = (steps, output) => {
  const bar = find("bar"), keys = find("keys");
  bar.replaceChildren();
  keys.replaceChildren();
  bar.hidden = !steps.length || steps.some(step => !step.ledger);
  if (!steps.length) return;
  if (bar.hidden) { keys.textContent = data.no_ledger; return; }
  const entries = data.entries.map((name, k) => [name, total(steps, step => step.ledger[k])]);
  const sizes = entries.reduce((sum, [, x]) => sum + Math.abs(x), 0) || 1;
  for (const [name, x] of entries) {
    const part = document.createElement("span"), key = document.createElement("span");
    part.dataset.entry = name;
    part.dataset.value = x.toPrecision(6);
    part.title = `${name} ${number(x)}`;
    part.style.cssText = `width:${100 * Math.abs(x) / sizes}%;background:${data.ledger[name]}`;
    bar.append(part);
    key.className = "key";
    key.style.background = data.ledger[name];
    keys.append(key, `${name} ${number(x)}`);
  }
  keys.append(` = ${number(output)}`);
  bar.setAttribute("aria-label", keys.textContent);
};

const render = () => {
  clear();
  const nothing = anchor === null;
  find("scale").hidden = nothing;
  find("hint").hidden = !nothing;
  if (nothing) {
    for (const id of ["summary", "others", "sources", "share"]) find(id).textContent = "";
    showLedger([], 0);
    return;
  }
  const {from, to, scores, steps} = selection(), written = steps.length > 0;
  const scale = light(scores, written && box.checked ? 0 : null);
  for (let i = from; i <= to; i++) pieces[i].setAttribute("aria-selected", "true");
  const token = quoted(data.features.slice(from, to + 1).join("")), output = total(steps, step => step.output);
  const sure = steps.length === 1 ? ` \u00b7 probability ${percent(steps[0].probability)}` : "";
  const column = Array.from(scores.values()).reduce((sum, x) => sum + x, 0);
  find("summary").textContent = written ? `${token} \u00b7 ${data.score} ${number(output)}${sure}`
    : `${token} contributed ${number(column)} to the generated tokens`;
  const rest = new Map(Array.from(scores).filter(([i]) => !written || !box.checked || i !== 0)), most = strongest(rest);
  find("sources").textContent = most && (written ? `mostly from ${most}` : `mostly to ${most}`);
  const others = steps.length === 1 ? steps[0].others : [];
  find("others").textContent = others.length
    ? "most probable here: " + others.map(([other, p]) => `${quoted(other)} ${percent(p)}`).join(", ") : "";
  const sizes = Array.from(scores.values()).reduce((sum, x) => sum + Math.abs(x), 0);
  const part = sizes ? Math.abs(scores.get(0) ?? 0) / sizes : 0;
  find("share").textContent = written ? `the first token ${quoted(data.features[0])} has `
    + `${number(scores.get(0) ?? 0)}, ${(100 * part).toFixed(0)}% of the absolute relevance`
    + (box.checked ? "; it is not shown, but counted in the ledger" : "") : "";
  find("low").textContent = number(-scale);
  find("high").textContent = number(scale);
  showLedger(steps, output);
};

const saveInAddress = () => {
  if (location.protocol === "about:") return;  // an iframe in a notebook has no URL of its own
  const [from, to] = [Math.min(anchor, end), Math.max(anchor, end)];
  const range = from < start ? `feature=${from}` : `step=${from - start}` + (to > from ? `-${to - start}` : "");
  const address = pinned ? `#${range}${box.checked ? "&first=out" : ""}` : location.pathname + location.search;
  history.replaceState(null, "", address);
};
const choose = (first, last, pin) => {
  const held = pin || pinned;
  anchor = first;
  end = last;
  pinned = pin;
  if (end !== null) {
    for (const piece of document.querySelectorAll(".piece[tabindex='0']")) piece.tabIndex = -1;
    pieces[end].tabIndex = 0;
  }
  render();
  if (held) saveInAddress();
};
const extend = to => {
  const possible = anchor !== null && anchor >= start && to >= start;
  choose(possible ? anchor : to, to, true);
};
const indexOf = event => {
  const piece = event.target.closest?.(".piece");
  return piece ? Number(piece.dataset.i) : null;
};
const focused = () => pieces.indexOf(document.activeElement);

text.addEventListener("mouseover", event => {
  const i = indexOf(event);
  if (i !== null && !pinned) choose(i, i, false);
});
text.addEventListener("mouseleave", () => {
  const i = focused();
  if (!pinned) choose(i < 0 ? null : i, i < 0 ? null : i, false);
});
text.addEventListener("mousedown", event => { if (event.shiftKey) event.preventDefault(); });
text.addEventListener("click", event => {
  const i = indexOf(event);
  if (i === null) return;
  if (event.shiftKey) extend(i);
  else choose(i, i, !(pinned && anchor === i && end === i));
});
text.addEventListener("focusin", event => {
  const i = indexOf(event);
  if (i !== null && !pinned) choose(i, i, false);
});
text.addEventListener("focusout", () => { if (!pinned) choose(null, null, false); });
const moves = {ArrowLeft: i => i - 1, ArrowRight: i => i + 1, Home: () => start, End: () => pieces.length - 1};
text.addEventListener("keydown", event => {
  const i = indexOf(event);
  if (i === null) return;
  if (event.key === "Enter" || event.key === " ") choose(i, i, !(pinned && anchor === i && end === i));
  else if (moves[event.key]) {
    const to = Math.min(pieces.length - 1, Math.max(0, moves[event.key](end ?? i)));
    if (event.shiftKey && to < start) return event.preventDefault();
    if (event.shiftKey) extend(to);
    else choose(to, to, pinned);
    pieces[to].focus();
  } else return;
  event.preventDefault();
});
document.addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  const i = focused();
  choose(i < 0 ? null : i, i < 0 ? null : i, false);
});
box.addEventListener("change", () => {
  render();
  if (pinned) saveInAddress();
});

const restoreFromAddress = () => {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const [from, to] = (parameters.get("step") ?? "").split("-").map(x => parseInt(x, 10));
  const last = Number.isNaN(to ?? NaN) ? from : to, feature = parseInt(parameters.get("feature") ?? "", 10);
  if (parameters.get("first") === "out") box.checked = true;
  if (0 <= from && from <= last && last < data.steps.length) choose(start + from, start + last, true);
  else if (0 <= feature && feature < start) choose(feature, feature, true);
  else render();
};
addEventListener("hashchange", restoreFromAddress);
text.classList.add("alive");
find("panel").hidden = false;
find("choices").hidden = false;
if (start < pieces.length) pieces[start].tabIndex = 0;
restoreFromAddress();
})();
