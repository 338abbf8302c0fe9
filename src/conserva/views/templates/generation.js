"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const find = id => document.getElementById(id);
const pieces = Array.from(document.querySelectorAll(".piece"));
const text = find("text"), box = find("first"), start = data.start, first = data.first;
const chips = Array.from(document.querySelectorAll(".chip"), button => {
  const inside = button.nextElementSibling;
  return {button, inside, members: Array.from(inside.children, piece => Number(piece.dataset.i))};
});

const number = x => {
  const sign = x < 0 || Object.is(x, -0) ? "-" : "+", size = Math.abs(x);
  if (size >= 0.0005 || size === 0) return sign + size.toFixed(3);
  const [digits, power] = size.toExponential(0).split("e-");
  return `${sign}${digits}e-${power.padStart(2, "0")}`;
};
const percent = x => `${(100 * x).toFixed(1)}%`;
const quoted = token => `\u201c${token.trim() || "\u2423".repeat(token.length)}\u201d`;
const hexadecimal = colour => "#" + colour.map(c => c.toString(16).padStart(2, "0")).join("");
const shade = (share, full, ground) => ground.map((low, i) => Math.round(low + (full[i] - low) * share));
const luminance = colour => {
  const [r, g, b] = colour.map(c => c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
// Above this luminance black text has the higher contrast, below it white text.
const ink = colour => luminance(colour) > Math.sqrt(1.05 * 0.05) - 0.05 ? "#000000" : "#ffffff";
// Shares are rounded to the steps of a colour channel: a text of thousands of tokens has a few hundred styles.
const styles = new Map();
const style = (score, scale) => {
  const share = Math.round(255 * Math.min(1, Math.abs(score) / scale)), key = score > 0 ? share : -share;
  if (!styles.has(key)) {
    const full = score > 0 ? data.for : data.against;
    const [light, dark] = [data.light, data.dark].map(ground => shade(share / 255, full, ground));
    styles.set(key, `--l:${hexadecimal(light)};--li:${ink(light)};--d:${hexadecimal(dark)};--di:${ink(dark)}`);
  }
  return styles.get(key);
};

// Scores are little-endian 32-bit floats in base64, which are decoded when they are first used.
const decoded = new Map();
const scoresOf = j => {
  if (!decoded.has(j)) {
    const bytes = Uint8Array.from(atob(data.steps[j].scores), c => c.charCodeAt(0)), view = new DataView(bytes.buffer);
    decoded.set(j, Float64Array.from({length: bytes.length / 4}, (_, i) => view.getFloat32(4 * i, true)));
  }
  return decoded.get(j);
};

// The selection, as [first, last] in the order in which it was made. What is pointed at is shown while nothing is held,
// and the opening selection while nothing is pointed at.
const opening = data.steps.length ? [start + data.opening, start + data.opening] : null;
let held = null, pointed = null, drag = null, lastWritten = opening;
const current = () => held ?? pointed ?? opening;
const ordered = ([a, b]) => [Math.min(a, b), Math.max(a, b)];

// Generated tokens with the sum of their rows of scores, or a token of the prompt with its column.
const rows = (from, to) => {
  const sums = new Float64Array(scoresOf(to - start).length);
  for (let j = from - start; j <= to - start; j++) scoresOf(j).forEach((x, i) => { sums[i] += x; });
  return new Map(sums.entries());
};
const column = i => {
  const scores = new Map();
  data.steps.forEach((_, j) => { if (i < scoresOf(j).length) scores.set(start + j, scoresOf(j)[i]); });
  return scores;
};
const total = values => Array.from(values).reduce((sum, x) => sum + x, 0);
const isFolded = piece => piece.parentElement.hidden;

let lit = [], pressed = [];
const clear = () => {
  for (const element of lit) {
    element.removeAttribute("style");
    element.removeAttribute("data-score");
    element.removeAttribute("title");
    element.classList.remove("out");
  }
  for (const piece of pressed) piece.setAttribute("aria-pressed", "false");
  lit = [];
  pressed = [];
};

const light = (scores, without) => {
  let scale = 0;
  for (const [i, x] of scores) if (i !== without && !isFolded(pieces[i])) scale = Math.max(scale, Math.abs(x));
  scale = scale || 1;
  for (const [i, x] of scores) {
    const piece = pieces[i];
    lit.push(piece);
    piece.dataset.score = x.toPrecision(6);
    if (i === without) piece.classList.add("out");
    else if (Math.abs(x) >= scale / 510) piece.style.cssText = style(x, scale);  // else the colour is the background
  }
  for (const {button, inside, members} of chips) {
    const sum = total(members.filter(i => i !== without).map(i => scores.get(i) ?? 0));
    if (!inside.hidden || !members.some(i => scores.has(i))) continue;
    lit.push(button);
    button.title = `${members.length} tokens of the template ${number(sum)}`;
    button.style.cssText = style(sum, scale);
  }
  return scale;
};

const add = (parent, kind, name, content = "") => {
  const element = Object.assign(document.createElement(kind), {className: name, textContent: content});
  parent.append(element);
  return element;
};

// A waterfall: each entry begins where the one before ends, and the last row goes from 0 to the output.
const showLedger = (steps, output) => {
  const bar = find("bar"), keys = find("keys");
  bar.replaceChildren();
  bar.hidden = !steps.length || steps.some(step => !step.ledger);
  keys.textContent = steps.length && bar.hidden ? data.no_ledger : "";
  if (bar.hidden) return;
  const drawn = [];
  let level = 0;
  data.entries.forEach((name, k) => {
    const value = total(steps.map(step => step.ledger[k]));
    drawn.push([name, value, level, level += value]);
  });
  drawn.push(["output", output, 0, output]);
  const levels = drawn.flatMap(([, , a, b]) => [a, b]);
  const low = Math.min(0, ...levels), wide = Math.max(0, ...levels) - low || 1;
  for (const [name, value, a, b] of drawn) {
    const row = add(bar, "div", `step ${name}`);
    add(row, "span", "", name === "output" ? "= output" : name);
    const track = add(row, "span", "track"), part = add(track, "span", value < 0 ? "down" : "");
    track.style.setProperty("--zero", `${-100 * low / wide}%`);
    part.dataset.entry = name;
    part.dataset.value = value.toPrecision(6);
    part.style.cssText = `left:${100 * (Math.min(a, b) - low) / wide}%;width:${100 * Math.abs(b - a) / wide}%;`
      + `--fill:${data.ledger[name] ?? "currentColor"}`;
    add(row, "span", "", number(value));
  }
  bar.setAttribute("aria-label", "ledger: " + drawn.map(([name, value]) => `${name} ${number(value)}`).join(", "));
};

const strongest = (scores, without) => Array.from(scores).filter(([i, x]) => x !== 0 && i !== without)
  .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, 5);
const showSources = (title, most) => {
  const line = find("sources");
  line.replaceChildren(most.length ? title : "");
  for (const [i, x] of most) {
    const source = add(line, "button", "source", `${quoted(data.features[i])} ${number(x)}`);
    source.type = "button";
    source.addEventListener("click", () => reveal(i));
  }
};

// Unfold a token and scroll its box to it.
const scrollBox = i => {
  const piece = pieces[i], frame = piece.closest(".pieces");
  frame.scrollTop = piece.offsetTop - frame.clientHeight / 2;
};
const reveal = i => {
  const chip = chips.find(({members}) => members.includes(i));
  if (chip?.inside.hidden) fold(chip, false);
  scrollBox(i);
  pieces[i].scrollIntoView({block: "nearest"});
  pieces[i].animate?.([{outline: "3px solid"}, {outline: "3px solid transparent"}], 1500);
};

const render = () => {
  clear();
  const chosen = current();
  find("scale").hidden = !chosen;
  if (!chosen) return;
  const [from, to] = ordered(chosen), written = from >= start, without = written && !box.checked ? first : null;
  const scores = written ? rows(from, to) : column(from);
  const steps = written ? data.steps.slice(from - start, to - start + 1) : [];
  const scale = light(scores, without), most = strongest(scores, without);
  for (let i = from; i <= to; i++) {
    pieces[i].setAttribute("aria-pressed", "true");
    pressed.push(pieces[i]);
  }
  const token = quoted(data.features.slice(from, to + 1).join("")), output = total(steps.map(step => step.output));
  find("low").textContent = number(-scale);
  find("high").textContent = number(scale);
  find("against").textContent = steps.length === 1 ? "the generated token" : "the generated tokens";
  showLedger(steps, output);
  if (!written) {
    const [a, b] = ordered(lastWritten ?? [start, start]), own = total(Array.from(scores, ([i, x]) => a <= i && i <= b ? x : 0));
    find("summary").textContent = `${token} contributed ${number(own)} to ${quoted(data.features.slice(a, b + 1).join(""))}`
      + ` and ${number(total(scores.values()))} to all generated tokens`;
    showSources("mostly to ", most);
    for (const id of ["others", "share"]) find(id).textContent = "";
    return;
  }
  lastWritten = [from, to];
  const probability = steps.length === 1 ? ` \u00b7 probability ${percent(steps[0].probability)}` : "";
  find("summary").textContent = `${token} \u00b7 ${data.score} ${number(output)}${probability}`;
  showSources("mostly from ", most);
  const others = steps.length === 1 ? steps[0].others : [];
  find("others").textContent = others.length
    ? "most probable here: " + others.map(([other, p]) => `${quoted(other)} ${percent(p)}`).join(", ") : "";
  const sizes = total(Array.from(scores.values(), Math.abs)), part = sizes ? Math.abs(scores.get(first) ?? 0) / sizes : 0;
  find("share").textContent = `the first token ${quoted(data.features[first])} has ${number(scores.get(first) ?? 0)}, `
    + `${(100 * part).toFixed(0)}% of the absolute relevance`
    + (box.checked ? "" : "; it is not coloured, but counted in the ledger");
  // What is pointed at must not move the text under the pointer.
  if (most.length && !pointed && !drag && most[0][0] < start) scrollBox(most[0][0]);
};

const saveInAddress = () => {
  if (location.protocol === "about:") return;  // an iframe in a notebook has no URL of its own
  const [from, to] = held ? ordered(held) : [];
  const range = from < start ? `feature=${from}` : `step=${from - start}` + (to > from ? `-${to - start}` : "");
  const tail = box.checked === data.included ? "" : `&first=${box.checked ? "in" : "out"}`;
  history.replaceState(null, "", held ? `#${range}${tail}` : location.pathname + location.search);
};
const moveStop = i => {
  for (const piece of document.querySelectorAll(".piece[tabindex='0']")) piece.tabIndex = -1;
  pieces[i].tabIndex = 0;
};
const hold = selection => {
  held = selection;
  if (held) moveStop(held[1]);
  render();
  saveInAddress();
};
const point = i => {
  pointed = i === null ? null : [i, i];
  if (held) return;
  if (pointed) moveStop(i);
  render();
};
const toggle = i => hold(held?.[0] === i && held[1] === i ? null : [i, i]);
const extend = to => {
  const [anchor] = held ?? pointed ?? [to];
  hold([anchor >= start && to >= start ? anchor : to, to]);
};
const indexOf = target => {
  const piece = target?.closest?.(".piece");
  return piece ? Number(piece.dataset.i) : null;
};
const focused = () => indexOf(document.querySelector(".piece:focus-visible"));

// Only a mouse can point without pressing, and only the keyboard moves the focus without pressing: for other ways there
// is the click. The panel has a fixed height, so that nothing moves under the pointer.
text.addEventListener("pointerover", event => {
  const i = indexOf(event.target);
  if (i === null || event.pointerType !== "mouse") return;
  if (!drag) point(i);
  const score = pieces[i].dataset.score;
  pieces[i].title = data.features[i] + (score === undefined ? "" : ` ${number(Number(score))}`);
});
text.addEventListener("pointerleave", () => { if (!drag) point(focused()); });
text.addEventListener("focusin", event => {
  if (indexOf(event.target) !== null && event.target.matches(":focus-visible")) point(indexOf(event.target));
});
// The panel keeps its token while it is used: rendered anew, it would lose the button that gets the focus.
const leave = event => { if (!(event.relatedTarget && find("panel").contains(event.relatedTarget))) point(null); };
text.addEventListener("focusout", leave);
find("panel").addEventListener("focusout", event => { if (!text.contains(event.relatedTarget)) leave(event); });
text.addEventListener("mousedown", event => { if (event.shiftKey) event.preventDefault(); });
text.addEventListener("click", event => {
  const i = indexOf(event.target), dragged = drag?.moved;
  drag = null;
  if (i === null || dragged) return;
  if (event.shiftKey) extend(i);
  else toggle(i);
});
// A drag over generated tokens holds them; a vertical one on a touch screen scrolls, and cancels the pointer.
text.addEventListener("pointerdown", event => {
  const i = indexOf(event.target);
  drag = i !== null && i >= start && event.button === 0 && !event.shiftKey ? {from: i, to: i, moved: false} : null;
});
addEventListener("pointermove", event => {
  if (!drag) return;
  const to = indexOf(document.elementFromPoint(event.clientX, event.clientY));
  if (to === null || to < start || to === drag.to) return;
  Object.assign(drag, {to, moved: true});
  hold([drag.from, to]);
});
addEventListener("pointerup", () => { setTimeout(() => { drag = null; }); });  // after the click
addEventListener("pointercancel", () => { drag = null; });

const visibleFrom = (i, step) => {
  while (i >= 0 && i < pieces.length && isFolded(pieces[i])) i += step;
  return i >= 0 && i < pieces.length ? i : null;
};
const moves = {
  ArrowLeft: i => visibleFrom(i - 1, -1), ArrowRight: i => visibleFrom(i + 1, 1),
  Home: () => start, End: () => pieces.length - 1,
};
text.addEventListener("keydown", event => {
  const i = indexOf(event.target);
  if (i === null) return;
  if (event.key === "Enter" || event.key === " ") toggle(i);
  else if (moves[event.key]) {
    const to = moves[event.key](held?.[1] ?? i) ?? i;
    if (!event.shiftKey || to >= start) {
      if (event.shiftKey) extend(to);
      else if (held) hold([to, to]);
      pieces[to].focus();
    }
  } else return;
  event.preventDefault();
});
document.addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  pointed = focused() === null ? null : [focused(), focused()];
  hold(null);
});
box.addEventListener("change", () => {
  render();
  if (held) saveInAddress();
});

const fold = ({button, inside}, folded) => {
  inside.hidden = folded;
  button.setAttribute("aria-expanded", String(!folded));
};
for (const chip of chips) {
  chip.button.hidden = false;
  fold(chip, true);
  chip.button.addEventListener("click", () => {
    fold(chip, !chip.inside.hidden);
    render();
  });
}

const restoreFromAddress = () => {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const [from, to] = (parameters.get("step") ?? "").split("-").map(x => parseInt(x, 10));
  const last = Number.isNaN(to ?? NaN) ? from : to, feature = parseInt(parameters.get("feature") ?? "", 10);
  box.checked = parameters.has("first") ? parameters.get("first") === "in" : data.included;
  if (0 <= from && from <= last && last < data.steps.length) hold([start + from, start + last]);
  else if (0 <= feature && feature < start) hold([feature, feature]);
  else render();
};
addEventListener("hashchange", restoreFromAddress);
text.classList.add("alive");
for (const id of ["panel", "choices", "hint"]) find(id).hidden = false;
if (opening) moveStop(opening[0]);
restoreFromAddress();
})();
