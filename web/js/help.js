// The definitions of terms, and the dialog of keys and mouse gestures.

import { h, html, render } from "./dom.js";
import { keycap, KEYS } from "./keyboard.js";

const GAP = 8;

/** @param {HTMLElement} tip */
export function install(tip) {
  /** @param {EventTarget | null} target @returns {HTMLElement | null} */
  const termOf = (target) => (target instanceof Element ? target.closest("[data-definition]") : null);
  /** @type {HTMLElement | null} */
  let held = null;
  /** @type {HTMLElement | null} */
  let shown = null;
  const hide = () => {
    held = shown = null;
    tip.hidden = true;
  };
  /** @param {Event} event */
  const react = (event) => {
    if (event.target instanceof Node && tip.contains(event.target)) return;
    const term = termOf(event.target);
    if (event.type === "click") held = term;
    else if (held !== null) return;
    if (!term) return hide();
    shown = term;
    place(tip, term, held !== null);
  };
  for (const kind of ["pointerover", "focusin", "click"]) document.addEventListener(kind, react);
  document.addEventListener("focusout", (event) => {
    if (!(event.relatedTarget instanceof Node && tip.contains(event.relatedTarget))) hide();
  });
  // Focus or a tap may scroll the page, so the tip follows its term.
  const follow = () => shown?.matches(":focus, :hover") ? place(tip, shown, held !== null) : hide();
  document.addEventListener("scroll", follow, { passive: true });
  document.addEventListener("keydown", (event) => {
    const entered = event.key === "Enter" ? termOf(event.target) : null;
    if (entered?.dataset.more && !(entered instanceof HTMLButtonElement)) location.assign(entered.dataset.more);
    if (event.key !== "Escape" || tip.hidden) return;
    event.preventDefault();
    hide();
  });
}

/** @param {HTMLElement} tip @param {HTMLElement} term @param {boolean} held */
function place(tip, term, held) {
  const { definition = "", more = "" } = term.dataset;
  tip.replaceChildren(definition, ...(held && more ? [" ", h("a", { href: more }, "Learn more")] : []));
  tip.classList.toggle("held", held);
  tip.hidden = false;
  const at = term.getBoundingClientRect();
  const size = tip.getBoundingClientRect();
  const left = Math.min(at.left, document.documentElement.clientWidth - size.width - GAP);
  const below = at.bottom + GAP + size.height <= window.innerHeight;
  tip.style.left = `${Math.max(GAP, left)}px`;
  tip.style.top = `${below ? at.bottom + GAP : at.top - size.height - GAP}px`;
}

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
