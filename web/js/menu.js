// Popups that a button opens, and the menu that saves a chart.

import { html } from "./lit-html.js";

/** @type {[Saved, string][]} */
const ITEMS = [
  ["png", "Save as PNG"],
  ["svg", "Save as SVG"],
  ["csv", "Save data as CSV"],
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

/** A popup that closes on Escape and when the focus leaves it. `content` must be focusable: a click in it keeps it
 * open.
 * @param {string} kind @param {string} sign @param {string} label @param {TemplateResult} content */
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

/** @param {Told} event inside the popup */
function close({ currentTarget }) {
  const element = currentTarget.closest("details");
  element?.removeAttribute("open");
  element?.querySelector("summary")?.focus();
}
