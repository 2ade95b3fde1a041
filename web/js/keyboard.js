// What each key does, the dialog that says so, and the definitions of terms. The browser's own shortcuts are left alone.

import { byId, h, html, openDialog } from "./dom.js";

/** In the order of the help dialog. The first key of each is the main one. @type {Key[]} */
export const KEYS = [
  { keys: ["+", "="], command: "in", words: "Zoom in", group: "Charts" },
  { keys: ["-", "−"], command: "out", words: "Zoom out", group: "Charts" },
  { keys: ["ArrowLeft"], command: "left", words: "Earlier", group: "Charts" },
  { keys: ["ArrowRight"], command: "right", words: "Later", group: "Charts" },
  { keys: ["0", "Escape"], command: "whole", words: "The whole run", group: "Charts" },
  { keys: ["f"], command: "follow", words: "Follow the newest steps, or stop following", group: "Charts" },
  { keys: ["p"], command: "pause", words: "Pause or resume live updates", group: "Charts" },
  { keys: ["j", "]"], command: "next", words: "The next skip", group: "Charts" },
  { keys: ["k", "["], command: "previous", words: "The previous skip", group: "Charts" },
  { keys: ["c"], command: "link", words: "Copy a link to this view", group: "Page" },
  { keys: ["/"], command: "search", words: "Search", group: "Page" },
  { keys: ["g"], command: "list", words: "All runs", group: "Page" },
  { keys: ["t"], command: "theme", words: "Switch between light and dark", group: "Page" },
  { keys: ["?"], command: "help", words: "Show this help", group: "Page" },
];

const COMMANDS = new Map(KEYS.flatMap(({ keys, command }) => keys.map((key) => [key, command])));

/** Elements that handle keys themselves. */
const TYPED = "input, select, textarea, [contenteditable], [role=slider], [role=listbox], [role=menu], [role=textbox]";

/** Elements that scroll by arrow keys. */
const SCROLLED = "pre, table, .sideways";

/** The command of a key press; null if the browser, a field or another listener handles it. `target` has the focus.
 * @param {Pick<KeyboardEvent, "key" | "code" | "ctrlKey" | "metaKey" | "altKey" | "isComposing" | "defaultPrevented">} event
 * @param {{closest(selector: string): unknown} | null} target */
export function commandOf(event, target) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return null;
  const command = COMMANDS.get(latin(event)) ?? null;
  if (command === null || target?.closest(TYPED)) return null;
  return (command === "left" || command === "right") && target?.closest(SCROLLED) ? null : command;
}

/** The Latin letter of a key, if the keyboard has another script. @param {Pick<KeyboardEvent, "key" | "code">} event */
function latin({ key, code }) {
  const foreign = key.length === 1 && key > "\u007f" && code.startsWith("Key");
  return foreign ? code.slice(3).toLowerCase() : key;
}

/** @param {string} key */
export function keycap(key) {
  return { ArrowLeft: "←", ArrowRight: "→", "-": "−", Escape: "Esc" }[key] ?? key;
}

const GAP = 8;
const MOUSE = Object.entries({
  "Point at a chart": "Show the values at that step above every chart",
  "Drag across a chart": "Zoom all charts to that range",
  "Double-click a chart": "Show the whole run",
  "Click a number above the charts": "Copy it with all digits",
});

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

/** Open the dialog of keys and gestures. A click outside closes it. */
export function openHelp() {
  const keys = (/** @type {string} */ group) =>
    KEYS.filter((key) => key.group === group).map(({ keys, words }) => row([...new Set(keys.map(keycap))].map((cap) => html`<kbd>${cap}</kbd>`), words));
  const outside = (/** @type {Told} */ { target, currentTarget }) => target === currentTarget && target.closest("dialog")?.close();
  openDialog(
    { class: "sheet", "aria-labelledby": "help-title", onclick: outside },
    html`
      <form method="dialog"><header><h2 id="help-title">Keys and gestures</h2><button class="quiet" aria-label="Close">✕</button></header></form>
      <section><h3>Charts</h3><dl>${keys("Charts")}</dl></section>
      <section><h3>Page</h3><dl>${keys("Page")}</dl></section>
      <section><h3>Mouse</h3><dl>${MOUSE.map(([what, does]) => row(what, does))}</dl></section>
      <p class="caption">Each shortcut also has a button. The page's address includes the view, so a link to it opens the same view.</p>
    `,
  );
}

/** @type {(what: string | TemplateResult[], does: string) => TemplateResult} */
function row(what, does) {
  return html`<div><dt><span>${what}</span></dt><dd>${does}</dd></div>`;
}
