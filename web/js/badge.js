// A run's status, and how bad it is, each as a shape and a word: never by colour alone.

import { html, nothing } from "./lit-html.js";
import { SEVERITY, STATUS } from "./words.js";

/** @import { TemplateResult } from "./lit-html.js" */
/** @import { Severity, Status } from "../types/page.js" */

/** @param {Status} status */
export function badge(status) {
  const [shape, meaning] = STATUS[status] ?? ["?", "Unknown to this page."];
  return html`<span class="badge" data-status=${status} title=${meaning}><span aria-hidden="true">${shape}</span><span>${status}</span></span>`;
}

/**
 * Null is nothing wrong; `words` are in place of the severity's.
 * @type {(severity: Severity | null, words?: string, title?: string) => TemplateResult}
 */
export function verdictBadge(severity, words, title) {
  const [shape, word] = SEVERITY[severity ?? "healthy"];
  return html`<span class="badge verdict" data-severity=${severity ?? "healthy"} title=${title ?? nothing}><span aria-hidden="true">${shape}</span><span>${words ?? word}</span></span>`;
}
