// A block of code, and a button that copies it.

import { html } from "./lit-html.js";

const COPIED_MS = 2000;

/** @param {string} code @param {string} standing the caption @param {TemplateResult | null} [button] unless it is elsewhere */
export function codeBlock(code, standing, button = null) {
  return html`<div class="code" ?hidden=${!code && !standing}>
    <p class="caption">${standing}</p>
    <pre tabindex="0" ?hidden=${!code}><code>${code}</code></pre>
    ${button}
  </div>`;
}

/** @param {string} code */
export function copyButton(code) {
  return html`<button type="button" ?hidden=${!code} @click=${copied}>Copy the code</button>`;
}

/** Copy the code in the button's section, or select it if copying is not allowed. @param {Told} event */
async function copied({ currentTarget }) {
  const button = /** @type {HTMLButtonElement} */ (currentTarget);
  const code = button.closest("section, details")?.querySelector(".code code");
  const done = (await navigator.clipboard?.writeText(code?.textContent ?? "").then(() => true, () => false)) ?? false;
  if (!done && code) getSelection()?.selectAllChildren(code);
  button.textContent = done ? "Copied" : "Code selected: copy it";
  setTimeout(() => (button.textContent = "Copy the code"), COPIED_MS);
}
