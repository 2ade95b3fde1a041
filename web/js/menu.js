// The small menu of a chart: to save it, its data, and a link to it.

import { h } from "./dom.js";

/** @typedef {"png" | "svg" | "csv" | "link"} Saved */

/** @type {[Saved, string][]} */
const ITEMS = [
  ["png", "Save as PNG"],
  ["svg", "Save as SVG"],
  ["csv", "Save its data (CSV)"],
  ["link", "Copy a link to this view"],
];

/**
 * @param {string} chart
 * @param {(kind: Saved) => void} onSave
 */
export function menu(chart, onSave) {
  const items = ITEMS.map(([kind, words]) => h("li", {}, h("button", { type: "button", class: "quiet", onclick: () => choose(kind) }, words)));
  const opener = h("summary", { title: "Save, or copy a link", "aria-label": `Save ${chart}, or copy a link` }, "⋯");
  const element = h("details", { class: "menu", onfocusout: leave, onkeydown: escape }, opener, h("ul", {}, ...items));

  /** @param {Saved} kind */
  function choose(kind) {
    close();
    onSave(kind);
  }

  /** @param {Event} event */
  function leave(event) {
    const to = event instanceof FocusEvent ? event.relatedTarget : null;
    if (!(to instanceof Node && element.contains(to))) element.open = false;
  }

  /** @param {Event} event */
  function escape(event) {
    if (!(event instanceof KeyboardEvent) || event.key !== "Escape" || !element.open) return;
    event.preventDefault();
    close();
  }

  function close() {
    element.open = false;
    opener.focus();
  }

  return element;
}
