// The help sheet: each key with what it does. One dialog serves the whole page.

import { h } from "./dom.js";
import { KEYS, keycap } from "./keyboard.js";

const MOUSE = [
  ["Point at a chart", "Read all charts at that step, in the row above each"],
  ["Drag across a chart", "Zoom in on it, and on all others with it"],
  ["Double-click a chart", "The whole run again"],
  ["Click a number above the charts", "Copy it, with all its digits"],
];

/** @type {HTMLDialogElement | null} */
let sheet = null;

/** Opens it, or closes it where it is open. The focus goes back to where it was. */
export function toggle() {
  sheet ??= document.body.appendChild(build());
  if (sheet.open) sheet.close();
  else sheet.showModal();
}

function build() {
  const groups = /** @type {const} */ (["Charts", "Page"]).map((group) => section(group, rows(group)));
  const close = h("button", { type: "button", class: "quiet", onclick: toggle, "aria-label": "Close" }, "✕");
  return h(
    "dialog",
    { class: "sheet", "aria-labelledby": "help-title", onclick: leave },
    h("header", {}, h("h2", { id: "help-title" }, "Keys and gestures"), close),
    ...groups,
    section("Mouse", MOUSE.map(([what = "", does = ""]) => row(h("span", {}, what), does))),
    h("p", { class: "caption" }, "Each shortcut also has a button. The address holds the view, so a link restores it."),
  );
}

/** @param {string} group */
function rows(group) {
  const of = KEYS.filter((key) => key.group === group);
  return of.map(({ keys, words }) => row(h("span", {}, ...caps(keys).map((cap) => h("kbd", {}, cap))), words));
}

/**
 * Each of the keys as it stands on it, once.
 * @param {string[]} keys
 */
function caps(keys) {
  return [...new Set(keys.map(keycap))];
}

/**
 * @param {string} title
 * @param {HTMLElement[]} rows
 */
function section(title, rows) {
  return h("section", {}, h("h3", {}, title), h("dl", {}, ...rows));
}

/**
 * @param {HTMLElement} what
 * @param {string} does
 */
function row(what, does) {
  return h("div", {}, h("dt", {}, what), h("dd", {}, does));
}

/**
 * A click beside the sheet closes it.
 * @param {Event} event
 */
function leave(event) {
  if (event.target === event.currentTarget) toggle();
}
