// Shows the definition of a term on hover, focus or tap, inside the window. One element serves the whole page.

const GAP = 8;

/** @param {HTMLElement} tip */
export function install(tip) {
  /** @param {EventTarget | null} target */
  const termOf = (target) => (target instanceof Element ? target.closest("[data-definition]") : null);
  const hide = () => {
    tip.hidden = true;
  };
  /** @param {Event} event */
  const react = (event) => {
    const term = termOf(event.target);
    if (term instanceof HTMLElement) place(tip, term);
    else hide();
  };
  for (const kind of ["pointerover", "focusin", "click"]) document.addEventListener(kind, react);
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, { passive: true });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });
}

/**
 * @param {HTMLElement} tip
 * @param {HTMLElement} term
 */
function place(tip, term) {
  tip.textContent = term.dataset.definition ?? "";
  tip.hidden = false;
  const at = term.getBoundingClientRect();
  const size = tip.getBoundingClientRect();
  const left = Math.min(at.left, document.documentElement.clientWidth - size.width - GAP);
  const below = at.bottom + GAP + size.height <= window.innerHeight;
  tip.style.left = `${Math.max(GAP, left)}px`;
  tip.style.top = `${below ? at.bottom + GAP : at.top - size.height - GAP}px`;
}
