// Shows a term's definition on hover, focus or tap, inside the window. One element serves the whole page. A click or
// tap holds the tip, which then has a link to more. Enter follows that link, unless the term is a button.

import { h } from "./dom.js";

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
