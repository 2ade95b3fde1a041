// Warnings that the reader must see before trusting the page.

import { html } from "./lit-html.js";

/** @param {string[]} notices */
export function notices(notices) {
  return html`<ul class="notices" role="status" ?hidden=${notices.length === 0}>${notices.map((words) => html`<li>${words}</li>`)}</ul>`;
}
