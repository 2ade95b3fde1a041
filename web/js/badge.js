// Badges for a run's status and severity: a shape and a word each, so that nothing depends on colour alone.

import { html, nothing } from "./lit-html.js";
import { SEVERITY, STATUS } from "./words.js";

/** @param {Status} status */
export function badge(status) {
  const [shape, meaning] = STATUS[status] ?? ["?", "Unknown status. Reload the page."];
  return html`<span class="badge" data-status=${status} title=${meaning}><span aria-hidden="true">${shape}</span><span>${status}</span></span>`;
}

/** Null means healthy. `words` replace the severity's word.
 * @type {(severity: Severity | null, words?: string, title?: string) => TemplateResult} */
export function verdictBadge(severity, words, title) {
  const [shape, word] = SEVERITY[severity ?? "healthy"];
  return html`<span class="badge verdict" data-severity=${severity ?? "healthy"} title=${title ?? nothing}><span aria-hidden="true">${shape}</span><span>${words ?? word}</span></span>`;
}
