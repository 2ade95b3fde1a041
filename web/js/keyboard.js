// What each key does, and the definitions of terms. The browser's own shortcuts are left alone.

import { byId, h } from "./dom.js";

/** Elements that handle keys themselves. */
const TYPED = "input, select, textarea, [contenteditable], [role=slider], [role=listbox], [role=menu], [role=textbox]";

/** Elements that scroll by arrow keys. */
const SCROLLED = "pre, table, .sideways";

/** The command of a key press, as the dialog of keys lists it; null if the browser, a field or another listener handles it.
 * `target` has the focus.
 * @param {Pick<KeyboardEvent, "key" | "code" | "ctrlKey" | "metaKey" | "altKey" | "isComposing" | "defaultPrevented">} event
 * @param {{closest(selector: string): unknown} | null} target */
export function commandOf(event, target) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return null;
  const row = /** @type {HTMLElement | null} */ (byId("keys").querySelector(`[data-keys~="${CSS.escape(latin(event))}"]`));
  const command = /** @type {Command | undefined} */ (row?.dataset["command"]);
  if (command === undefined || target?.closest(TYPED)) return null;
  return (command === "left" || command === "right") && target?.closest(SCROLLED) ? null : command;
}

/** The Latin letter of a key, if the keyboard has another script. @param {Pick<KeyboardEvent, "key" | "code">} event */
function latin({ key, code }) {
  const foreign = key.length === 1 && key > "\u007f" && code.startsWith("Key");
  return foreign ? code.slice(3).toLowerCase() : key;
}

const GAP = 8;

/** Show a term's definition on hover, focus or tap, inside the window. A click or tap holds the tip, which then has a
 * link to more. Enter follows that link, unless the term is a button. */
export function installTips() {
  const tip = byId("tip");
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
  const react = ({ target, type }) => {
    if (target instanceof Node && tip.contains(target)) return;
    const term = termOf(target);
    if (type === "click") held = term;
    else if (held !== null) return;
    if (!term) return hide();
    shown = term;
    place(tip, term, held !== null);
  };
  for (const kind of ["pointerover", "focusin", "click"]) document.addEventListener(kind, react);
  document.addEventListener("focusout", ({ relatedTarget }) => {
    if (!(relatedTarget instanceof Node && tip.contains(relatedTarget))) hide();
  });
  // Focus or a tap may scroll the page, so the tip follows its term.
  const follow = () => (shown?.matches(":focus, :hover") ? place(tip, shown, held !== null) : hide());
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
