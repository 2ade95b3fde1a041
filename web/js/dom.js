// Builds and updates elements, and has what the server declares in the page. Strings are inserted as text, never as HTML:
// names of runs and parameters are untrusted.

import { copied } from "./browser.js";
import { twoTo } from "./format.js";
import { html, nothing, render } from "./lit-html.js";

export { html, nothing, render };

const REST_MS = 250;
const COPIED_MS = 2000;

/** Of the search field in which the reader types. @type {ReturnType<typeof setTimeout> | undefined} */
let resting;
// What was typed in one view is not searched in another.
window.addEventListener("hashchange", () => (resting = void clearTimeout(resting)));

/** An element of index.html. @param {string} id */
export const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** What the server declares: its charts, a parameter's statistics, terms, and what the page says of numbers and states.
 * @type {Declared} */
export const DECLARED = JSON.parse(byId("declared").textContent);

/** A copy of a template of index.html. @param {string} id */
export function copyOf(id) {
  const { content } = /** @type {HTMLTemplateElement} */ (byId(id));
  return /** @type {HTMLElement} */ (content.cloneNode(true).firstChild);
}

/** Create an element with attributes, listeners (functions, such as `onclick`) and children.
 * @template {keyof HTMLElementTagNameMap} Tag @param {Tag} tag @param {Attributes} [attributes] @param {...Child} children */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.replace(/^on/, ""), /** @type {EventListener} */ (value));
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Set an element's text only if it differs. @type {(element: Element, text: string) => void} */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set or remove an attribute if it differs. @type {(element: Element, name: string, value: string | null) => void} */
export function mark(element, name, value) {
  if (element.getAttribute(name) === value) return;
  if (value === null) element.removeAttribute(name);
  else element.setAttribute(name, value);
}

/** Make `parent`'s children match `items`, in order. An item that stays keeps its element, and its focus even if it moves.
 * @template Item @param {HTMLElement} parent @param {Item[]} items
 * @param {{key: (item: Item) => string, make: (item: Item) => HTMLElement, update: (element: HTMLElement, item: Item) => void}} how */
export function keyed(parent, items, { key, make, update }) {
  const children = /** @type {HTMLCollectionOf<HTMLElement>} */ (parent.children);
  const before = new Map([...children].map((child) => [child.dataset.key ?? "", child]));
  const names = new Set(items.map(key));
  for (const [name, child] of before) if (!names.has(name)) child.remove();
  /** @type {Element | null} */
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    const known = before.get(name);
    const element = known ?? make(item);
    element.dataset.key = name;
    if (element === place) place = place.nextElementSibling;
    else if (known && "moveBefore" in parent) parent.moveBefore(element, place);
    else parent.insertBefore(element, place);
    update(element, item);
  }
}

/** A select element. Render it with `renderForm`, which applies `chosen` once the options are on the page.
 * @param {SelectField} field */
export function select({ name, label, options, chosen, hidden = false, onChoose }) {
  const words = options.map(([value, words]) => html`<option value=${value}>${words}</option>`);
  return html`<select name=${name ?? nothing} aria-label=${label} data-chosen=${chosen} ?hidden=${hidden} @change=${({ target }) => onChoose(target.value)}>${words}</select>`;
}

/** A search field that reports its text once typing pauses. Render it with `renderForm`, which shows `search` in it unless
 * the reader is typing. Spaces around the text are left to the reader.
 * @param {{name: string, label: string, placeholder: string, search?: string, onSearch: (search: string) => void}} field */
export function searchField({ name, label, placeholder, search, onSearch }) {
  const tell = (/** @type {UserEvent} */ { target }) => {
    if (resting === undefined) return;
    clearTimeout(resting);
    resting = undefined;
    onSearch(target.value.trim());
  };
  const rest = (/** @type {UserEvent} */ event) => {
    clearTimeout(resting);
    resting = setTimeout(tell, REST_MS, event);
  };
  return html`<input type="search" name=${name} aria-label=${label} placeholder=${placeholder} title=${label} maxlength="256"
    spellcheck="false" autocomplete="off" data-chosen=${search ?? nothing} ?data-searching=${search} @change=${tell} @input=${rest}>`;
}

/** A slider over powers of two, with the power beside it. A screen reader also reads `more`.
 * @param {{label: string, at: Choosable, more?: string, onMove: (value: number) => void, onChosen?: () => void}} slider */
export function slider({ label, at: { low, high, value }, more = "", onMove, onChosen = () => {} }) {
  const words = twoTo(value);
  return html`<label class="slider"><input type="range" step="1" min=${low} max=${high} .value=${String(value)} aria-label=${label}
    aria-valuetext=${words + more} @input=${({ target }) => onMove(Number(target.value))} @change=${onChosen} @pointerup=${onChosen}><output>${words}</output></label>`;
}

/** Render a template, then apply the choices of its fields, which the selector `fields` finds.
 * @type {(template: TemplateResult, element: HTMLElement, fields?: string) => void} */
export function renderForm(template, element, fields = "select, input[type=search]") {
  render(template, element);
  for (const field of /** @type {NodeListOf<HTMLSelectElement | HTMLInputElement>} */ (element.querySelectorAll(fields))) {
    const { chosen = field.value } = field.dataset;
    const typing = field === document.activeElement && resting !== undefined;
    if (field.value.trim() !== chosen && !typing) field.value = chosen;
  }
}

/** Open a dialog, which is removed once it is closed.
 * @type {(attributes: Attributes, content: TemplateResult, onClose?: (dialog: HTMLDialogElement) => void) => void} */
export function openDialog(attributes, content, onClose) {
  const dialog = document.body.appendChild(h("dialog", attributes));
  dialog.addEventListener("close", () => {
    dialog.remove();
    onClose?.(dialog);
  });
  render(content, dialog);
  dialog.showModal();
}

/** A term whose definition, if it has one, is shown on hover, focus or tap. `section` is its anchor on the page of measures.
 * @param {string} word @param {Partial<Definition>} [definition] */
export function term(word, { definition, section = "" } = {}) {
  if (!definition) return html`<span>${word}</span>`;
  return html`<dfn tabindex="0" data-definition=${definition} data-more=${moreOf(section)} aria-description=${definition}>${word}</dfn>`;
}

/** A link into the page of measures, for `data-more`. @param {string} section */
export const moreOf = (section) => `findings/measures#${section}`;

/** A parameter's dotted name as code, which may break after each dot. @param {string} name */
export const dotted = (name) => html`<code>${name.split(/(?<=\.)/).map((part, index) => (index ? html`<wbr>${part}` : part))}</code>`;

/** Text with code in backticks, which may break after each dot. @param {string} words */
export function withCode(words) {
  return words.split("`").map((part, index) => (index % 2 ? dotted(part) : part));
}

/** @param {Status} status */
export function badge(status) {
  const [shape, meaning] = DECLARED.statuses[status] ?? ["?", "Unknown status. Reload the page."];
  return html`<span class="badge" data-status=${status} title=${meaning}><span aria-hidden="true">${shape}</span><span>${status}</span></span>`;
}

/** `words` replace the severity's word. @type {(severity: Severity | null, words?: string, title?: string) => TemplateResult} */
export function verdictBadge(severity, words, title) {
  const word = severity ?? "healthy";
  return html`<span class="badge verdict" data-severity=${word} title=${title ?? nothing}><span aria-hidden="true">${DECLARED.severities[word]}</span><span>${words ?? word}</span></span>`;
}

/** @param {string[]} notices */
export function notices(notices) {
  return html`<ul class="notices" role="status" ?hidden=${notices.length === 0}>${notices.map((words) => html`<li>${words}</li>`)}</ul>`;
}

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
  return html`<button type="button" ?hidden=${!code} @click=${copyCode}>Copy the code</button>`;
}

/** Copy the code in the button's section, or select it if copying is not allowed. @param {UserEvent} event */
async function copyCode({ currentTarget }) {
  const code = currentTarget.closest("section, details")?.querySelector(".code code");
  const done = await copied(code?.textContent ?? "");
  if (!done && code) getSelection()?.selectAllChildren(code);
  currentTarget.textContent = done ? "Copied" : "Code selected: copy it";
  setTimeout(() => (currentTarget.textContent = "Copy the code"), COPIED_MS);
}

/** A popup that closes on Escape and when the focus leaves it. `content` must be focusable: a click in it keeps it
 * open.
 * @param {string} kind @param {string} sign @param {string} label @param {TemplateResult} content */
export function popup(kind, sign, label, content, hidden = false) {
  return html`<details class=${`popup ${kind}`} ?hidden=${hidden} @focusout=${leave} @keydown=${escape}>
    <summary title=${label} aria-label=${label}>${sign}</summary>
    ${content}
  </details>`;
}

/** @param {UserEvent} event */
function leave({ currentTarget, relatedTarget }) {
  if (!currentTarget.contains(/** @type {Node | null} */ (relatedTarget))) currentTarget.removeAttribute("open");
}

/** @param {UserEvent} event */
function escape(event) {
  if (event.key !== "Escape" || !event.currentTarget.matches("[open]")) return;
  event.preventDefault();
  closePopup(event);
}

/** @param {UserEvent} event inside the popup */
export function closePopup({ currentTarget }) {
  const element = currentTarget.closest("details");
  element?.removeAttribute("open");
  element?.querySelector("summary")?.focus();
}
