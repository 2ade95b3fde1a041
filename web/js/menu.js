// What opens over a chart from its head: the menu that saves it, and what its words mean.

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
  const { element, close } = popup("menu", "⋯", `Save ${chart}, or copy a link`, h("ul", { tabindex: -1 }, ...items));

  /** @param {Saved} kind */
  function choose(kind) {
    close();
    onSave(kind);
  }

  return element;
}

/**
 * Something that opens over the page, until Escape or until the focus leaves it.
 * @param {string} kind
 * @param {string} sign
 * @param {string} label
 * @param {HTMLElement} content one that takes the focus: a click on its words leaves it open
 */
export function popup(kind, sign, label, content) {
  const opener = h("summary", { title: label, "aria-label": label }, sign);
  const element = h("details", { class: `popup ${kind}`, onfocusout: leave, onkeydown: escape }, opener, content);

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

  return { element, close };
}
