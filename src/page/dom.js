// Elements, and values as text.

import { hidden } from "./hidden.js";

/**
 * Returns a text with its hidden characters as escapes: those that control, change the direction, or are not seen. All
 * texts of the page pass here, because names, ids, messages and errors are those of strangers.
 */
export const visible = (text) => text.replace(hidden, (letter) => ESCAPES[letter] ?? `\\u{${letter.codePointAt(0).toString(16)}}`);
const ESCAPES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** Returns a child as it is appended to an element of this name. Only preformatted text has line breaks. */
function shown(child, tag) {
  if (typeof child !== "string") return child;
  return tag === "pre" ? child.split("\n").map(visible).join("\n") : visible(child);
}

/** Returns the children of an element of this name, without those that are null. */
const present = (children, tag) => children.flat(Infinity).filter((child) => child != null && child !== false).map((child) => shown(child, tag));

/** Creates an element. `properties` are set as attributes, functions as listeners; children that are null are left out. */
export function el(tag, properties, ...children) {
  const made = /^(svg|line|path|circle|text)$/.test(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...present(children, tag));
  return made;
}

/** Replaces the content of an element. */
export const fill = (element, ...children) => element.replaceChildren(...present(children, element.localName));

/** Sets a text if it is another one, so that the browser lays nothing out for nothing. */
export function say(element, text) {
  const seen = visible(text);
  if (element.textContent !== seen) element.textContent = seen;
}

/**
 * Creates a table in a scrollable frame. The first column is text, and those that begin with `text:`. The frame's
 * `update` takes other rows, and keeps focus and scroll.
 */
export function table(caption, heads, rows = []) {
  const kind = heads.map((head, index) => (head.startsWith("text:") ? "text" : index === 0 ? "text" : null));
  const names = heads.map((head) => head.replace(/^text:/, ""));
  const body = el("tbody", {});
  const frame = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {},
      el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, names.map((name, index) => el("th", { scope: "col", class: kind[index] }, name)))),
      body));
  frame.update = (rows) => fill(body, rows.map((row) => el("tr", {}, row.map((cell, index) => el("td", { class: kind[index] }, cell)))));
  frame.update(rows);
  return frame;
}

/** Creates a button that copies a text, and says so. */
export function copier(label, text) {
  const button = el("button", { type: "button", class: "small", click: async () => {
    const copied = await copy(typeof text === "function" ? text() : text);
    button.textContent = copied ? "Copied" : "Select and copy it";
    announce(copied ? `${label}: copied` : "The browser does not let the page copy");
    setTimeout(() => { button.textContent = label; }, 1500);
  } }, label);
  return button;
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  // Without TLS, and not on this machine, browsers have no clipboard for pages but this one.
  const area = el("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  return copied;
}

/** Has screen readers say a text. */
export const announce = (text) => say(document.getElementById("announcer"), text);

export const thousands = (value) => value.toLocaleString("en");
export const trim = (value, digits) => String(+value.toFixed(digits));
export const short = (hex) => (hex.length > 14 ? `${hex.slice(0, 8)}…${hex.slice(-4)}` : hex);
export const rate = (value) => `${value < 100 ? trim(value, 1) : thousands(Math.round(value))}/s`;
export const micros = (value) => (value < 1e3 ? `${value} µs` : value < 1e6 ? `${trim(value / 1e3, value < 1e4 ? 2 : 1)} ms` : `${trim(value / 1e6, 2)} s`);
export const bytes = (value) => (value < 1 << 20 ? `${trim(value / 1024, 1)} KiB` : value < 1 << 30 ? `${trim(value / (1 << 20), 1)} MiB` : `${trim(value / (1 << 30), 2)} GiB`);
export const age = (ms) => (ms < 10_000 ? `${trim(ms / 1000, 1)} s` : ms < 120_000 ? `${Math.round(ms / 1000)} s` : `${Math.round(ms / 60_000)} min`);

/** Returns a whole number of smallest units as a decimal number with at most `most` digits after the point. */
export function units(value, decimals, most = 6) {
  const whole = BigInt(value), sign = whole < 0n ? "−" : "";
  const digits = (whole < 0n ? -whole : whole).toString().padStart(decimals + 1, "0");
  const integer = digits.slice(0, digits.length - decimals), fraction = digits.slice(digits.length - decimals).replace(/0+$/, "");
  const grouped = integer.replace(/\B(?=(\d{3})+$)/g, ",");
  if (!fraction) return sign + grouped;
  // Small amounts keep their first digits.
  const zeros = fraction.length - fraction.replace(/^0+/, "").length;
  const shown = fraction.slice(0, integer === "0" ? Math.max(most, zeros + 3) : most).replace(/0+$/, "");
  return sign + grouped + (shown ? `.${shown}` : "");
}

/** Parses a decimal number of ether into wei. Throws an error that says what was expected. */
export function wei(text, decimals = 18) {
  const match = /^\s*(\d[\d,_]*)?(?:\.(\d*))?\s*$/.exec(text);
  if (!match || (!match[1] && !match[2])) throw new Error(`${text || "an empty amount"}: expected a number like 1.5`);
  const fraction = match[2] ?? "";
  if (fraction.length > decimals) throw new Error(`${text}: expected at most ${decimals} digits after the point`);
  return BigInt((match[1] ?? "0").replace(/[,_]/g, "") + fraction.padEnd(decimals, "0"));
}

export const hexOf = (value) => `0x${BigInt(value).toString(16)}`;
