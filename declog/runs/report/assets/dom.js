// Elements, untrusted texts, and hints. All texts of a run become text nodes, never markup.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

/** An element with properties, `on...` listeners, attributes and children; null children are left out. */
function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value == null) continue;
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "data") Object.assign(node.dataset, value);
    else if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

/** An SVG element with attributes. */
function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** A table with heads [text, class] and rows of `tr`. */
function table(heads, rows) {
  const head = heads.map(([text, kind]) => el("th", { class: kind, textContent: text, scope: "col" }));
  return el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows));
}

/** A column head with a button that sorts the table, at first in descending order. */
function sortHead(name, title, sort, onsort) {
  const on = sort?.column === name;
  const head = el("th", { scope: "col", "aria-sort": on ? (sort.down ? "descending" : "ascending") : "none" });
  head.append(el("button", { class: "sort", type: "button", textContent: visible(title) + (on ? (sort.down ? " ↓" : " ↑") : ""), onclick: () => onsort({ column: name, down: on ? !sort.down : true }) }));
  return head;
}

const link = (text, onclick, more = {}) => el("button", { class: "link", type: "button", textContent: text, onclick, ...more });

/** Whether a key is typed into a field, or is part of a shortcut of the browser. */
const isTyped = ({ target, ctrlKey, metaKey, altKey }) => /INPUT|SELECT|TEXTAREA/.test(target.tagName) || ctrlKey || metaKey || altKey;

// -- texts of models

// C0 and C1 except tab and newline, direction marks and overrides, the byte order mark, and zero-width characters
// except the joiners, which Persian, Hindi and emoji need
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/;
const TAGS = /(<\/?(?:think|answer|tool_call|tool_response|reasoning)>)/;

/** Append a text; control and direction characters are shown by their numbers, and have no effect. */
function appendPlain(node, text) {
  let run = "";
  for (const character of text) {
    if (!CONTROL.test(character)) {
      run += character;
      continue;
    }
    if (run) node.append(run);
    run = "";
    const code = character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    node.append(el("span", { class: "ctl", textContent: `U+${code}` }));
  }
  if (run) node.append(run);
}

/** Append a text, with each hit of the search marked; without a search, with the tags of completions marked. */
function appendText(node, text, needle = "") {
  if (!needle) {
    for (const part of text.split(TAGS)) {
      if (TAGS.test(part)) node.append(el("span", { class: "tag", textContent: part }));
      else appendPlain(node, part);
    }
    return node;
  }
  let at = 0;
  for (const match of text.matchAll(new RegExp(escaped(needle), "gi"))) {
    appendPlain(node, text.slice(at, match.index));
    node.append(appendedPlain(el("mark"), match[0]));
    at = match.index + match[0].length;
  }
  appendPlain(node, text.slice(at));
  return node;
}

const appendedPlain = (node, text) => (appendPlain(node, text), node);
const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

/** A text for a line of the page: control characters are replaced by their numbers, newlines stay. */
function visible(text) {
  return appendedPlain(el("span"), String(text)).textContent;
}

// -- hints

const tip = $("#tip");

/** Show a hint below a rectangle, or above it if there is no room. */
function showTip(children, box) {
  tip.replaceChildren(...children);
  tip.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = tip;
  tip.style.left = `${Math.max(8, Math.min(innerWidth - width - 8, box.left))}px`;
  tip.style.top = `${box.bottom + height + 12 > innerHeight ? Math.max(4, box.top - height - 8) : box.bottom + 8}px`;
}

const hideTip = () => (tip.hidden = true);

/** Give an element a hint, on hover and on focus. */
function hint(node, content) {
  const show = () => showTip(content(), node.getBoundingClientRect());
  for (const event of ["mouseenter", "focus"]) node.addEventListener(event, show);
  for (const event of ["mouseleave", "blur"]) node.addEventListener(event, hideTip);
  node.setAttribute("aria-describedby", "tip");
  return node;
}

// -- colours

const cssVariable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A colour `#rrggbb` with an opacity. */
function faded(colour, opacity) {
  const channels = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgb(${channels.join(" ")} / ${Math.max(0, Math.min(1, opacity)).toFixed(3)})`;
}

const LINES = ["--accent", "--accent2", "--line3", "--line4", "--line5", "--line6", "--line7", "--line8"];
const lineColour = (index) => cssVariable(LINES[index % LINES.length]);
