// The help dialog: keys and mouse gestures. One dialog serves the whole page.

import { h } from "./dom.js";
import { KEYS, keycap } from "./keyboard.js";
import { html, render } from "./lit-html.js";

const MOUSE = Object.entries({
  "Point at a chart": "Show the values at that step above every chart",
  "Drag across a chart": "Zoom all charts to that range",
  "Double-click a chart": "Show the whole run",
  "Click a number above the charts": "Copy it with all digits",
});

/** A click outside closes it. */
const sheet = h("dialog", { class: "sheet", "aria-labelledby": "help-title", onclick: ({ target, currentTarget }) => target === currentTarget && toggle() });

/** Open or close the dialog. Closing returns the focus. */
export function toggle() {
  if (!sheet.isConnected) build();
  if (sheet.open) sheet.close();
  else sheet.showModal();
}

function build() {
  document.body.append(sheet);
  const groups = /** @type {const} */ (["Charts", "Page"]).map((group) => {
    const rows = KEYS.filter((key) => key.group === group).map(({ keys, words }) => row([...new Set(keys.map(keycap))].map((cap) => html`<kbd>${cap}</kbd>`), words));
    return html`<section><h3>${group}</h3><dl>${rows}</dl></section>`;
  });
  render(
    html`
      <header><h2 id="help-title">Keys and gestures</h2><button type="button" class="quiet" aria-label="Close" @click=${toggle}>✕</button></header>
      ${groups}
      <section><h3>Mouse</h3><dl>${MOUSE.map(([what, does]) => row(what, does))}</dl></section>
      <p class="caption">Each shortcut also has a button. The page's address includes the view, so a link to it opens the same view.</p>
    `,
    sheet,
  );
}

/** @type {(what: string | TemplateResult[], does: string) => TemplateResult} */
function row(what, does) {
  return html`<div><dt><span>${what}</span></dt><dd>${does}</dd></div>`;
}
