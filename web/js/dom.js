// Builds and updates elements. Strings are inserted as text, never as HTML: names of runs and parameters are untrusted.

import { html, nothing, render } from "./lit-html.js";

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

/** Make `parent`'s children match `items`, in order. An item that stays keeps its element, and so its focus.
 * @template Item @param {HTMLElement} parent @param {Item[]} items
 * @param {{key: (item: Item) => string, make: (item: Item) => HTMLElement, update: (element: HTMLElement, item: Item) => void}} how */
export function keyed(parent, items, { key, make, update }) {
  const children = /** @type {HTMLCollectionOf<HTMLElement>} */ (parent.children);
  const before = new Map([...children].map((child) => [child.dataset.key ?? "", child]));
  /** @type {Element | null} */
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    const element = before.get(name) ?? make(item);
    element.dataset.key = name;
    before.delete(name);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
    update(element, item);
  }
  for (const left of before.values()) left.remove();
}

/** A select element. Render it with `renderForm`, which applies `chosen` once the options are on the page.
 * @param {{name?: string, label: string, options: Options, chosen: string, hidden?: boolean, onChoose: (value: string) => void}} field */
export function select({ name, label, options, chosen, hidden = false, onChoose }) {
  const words = options.map(([value, words]) => html`<option value=${value}>${words}</option>`);
  return html`<select name=${name ?? nothing} aria-label=${label} data-chosen=${chosen} ?hidden=${hidden} @change=${({ target }) => onChoose(target.value)}>${words}</select>`;
}

/** Render a template, then apply the choices of its fields, which the selector `fields` finds.
 * @type {(template: TemplateResult, element: HTMLElement, fields?: string) => void} */
export function renderForm(template, element, fields = "select") {
  render(template, element);
  for (const field of /** @type {NodeListOf<HTMLSelectElement>} */ (element.querySelectorAll(fields))) {
    const { chosen = field.value } = field.dataset;
    if (field.value !== chosen) field.value = chosen;
  }
}

/** A term whose definition is shown on hover, focus or tap. `section` is its anchor on the page of measures.
 * @param {string} word @param {string} definition @param {string} section */
export function term(word, definition, section) {
  return html`<dfn tabindex="0" data-definition=${definition} data-more=${moreOf(section)} aria-description=${definition}>${word}</dfn>`;
}

/** A link into the page of measures, for `data-more`. @param {string} section */
export function moreOf(section) {
  return `findings/measures#${section}`;
}

/** A parameter's dotted name as code, which may break after each dot. @param {string} name */
export function dotted(name) {
  return html`<code>${name.split(/(?<=\.)/).map((part, index) => (index ? html`<wbr>${part}` : part))}</code>`;
}

/** Text with code in backticks. @param {string} words */
export function withCode(words) {
  return words.split("`").map((part, index) => (index % 2 ? html`<code>${part}</code>` : part));
}
