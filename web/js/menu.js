// What opens over the page from a button: the menu that saves a chart, and what its words mean.

import { html } from "./lit-html.js";

/** @import { Told, TemplateResult } from "./lit-html.js" */

/** @typedef {"png" | "svg" | "csv" | "link"} Saved */

/** @type {[Saved, string][]} */
const ITEMS = [
  ["png", "Save as PNG"],
  ["svg", "Save as SVG"],
  ["csv", "Save its data (CSV)"],
  ["link", "Copy a link to this view"],
];

/** @param {string} chart @param {boolean} hidden @param {(kind: Saved) => void} onSave */
export function menu(chart, hidden, onSave) {
  const items = ITEMS.map(([kind, words]) => {
    const choose = (/** @type {Told} */ event) => {
      close(event);
      onSave(kind);
    };
    return html`<li><button type="button" class="quiet" @click=${choose}>${words}</button></li>`;
  });
  return popup("menu", "⋯", `Save ${chart}, or copy a link`, html`<ul tabindex="-1">${items}</ul>`, hidden);
}

/**
 * Something that opens over the page, until Escape or until the focus leaves it.
 * @param {string} kind
 * @param {string} sign
 * @param {string} label
 * @param {TemplateResult} content one that takes the focus: a click on its words leaves it open
 */
export function popup(kind, sign, label, content, hidden = false) {
  return html`<details class=${`popup ${kind}`} ?hidden=${hidden} @focusout=${leave} @keydown=${escape}>
    <summary title=${label} aria-label=${label}>${sign}</summary>
    ${content}
  </details>`;
}

/** @param {Told} event */
function leave({ currentTarget, relatedTarget }) {
  if (!currentTarget.contains(/** @type {Node | null} */ (relatedTarget))) currentTarget.removeAttribute("open");
}

/** @param {Told} event */
function escape(event) {
  if (event.key !== "Escape" || !event.currentTarget.matches("[open]")) return;
  event.preventDefault();
  close(event);
}

/** @param {Told} event in it */
function close({ currentTarget }) {
  const element = currentTarget.closest("details");
  element?.removeAttribute("open");
  element?.querySelector("summary")?.focus();
}
