// Builds and updates elements. Text is only ever put in as text: names of runs and parameters are not to be trusted.

import { html, nothing, render } from "./lit-html.js";

/** @import { Told, TemplateResult } from "./lit-html.js" */

/**
 * @typedef {readonly (readonly [value: string, words: string])[]} Options
 * @typedef {string | Node | null | undefined | false} Child
 * @typedef {Record<string, string | number | boolean | null | undefined | ((event: Told) => void)>} Attributes
 */

/**
 * An element with attributes, listeners (`onclick` and the like, as functions) and children.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 */
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

/** Sets an element's text, touching the page only where it differs. @type {(element: Element, text: string) => void} */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Sets or takes away an attribute, touching the page only where it differs.
 * @type {(element: Element, name: string, value: string | null) => void}
 */
export function mark(element, name, value) {
  if (element.getAttribute(name) === value) return;
  if (value === null) element.removeAttribute(name);
  else element.setAttribute(name, value);
}

/**
 * Makes `parent`'s children those of `items`, in order, keeping the element of an item that stays: its focus is not lost.
 * @template Item
 * @param {HTMLElement} parent
 * @param {Item[]} items
 * @param {{key: (item: Item) => string, make: (item: Item) => HTMLElement, update: (element: HTMLElement, item: Item) => void}} how
 */
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

/**
 * A field that offers options, of which one is chosen as soon as `renderForm` has them on the page.
 * @param {{name?: string, label: string, options: Options, chosen: string, hidden?: boolean, onChoose: (value: string) => void}} field
 */
export function select({ name, label, options, chosen, hidden = false, onChoose }) {
  const words = options.map(([value, words]) => html`<option value=${value}>${words}</option>`);
  return html`<select name=${name ?? nothing} aria-label=${label} data-chosen=${chosen} ?hidden=${hidden} @change=${({ target }) => onChoose(target.value)}>${words}</select>`;
}

/**
 * Renders what has such fields, by what selects them.
 * @type {(template: TemplateResult, element: HTMLElement, fields?: string) => void}
 */
export function renderForm(template, element, fields = "select") {
  render(template, element);
  for (const field of /** @type {NodeListOf<HTMLSelectElement>} */ (element.querySelectorAll(fields))) {
    const { chosen = field.value } = field.dataset;
    if (field.value !== chosen) field.value = chosen;
  }
}

/**
 * A word with its definition on hover, focus or tap, and a link to more about it where that is held.
 * @param {string} word
 * @param {string} definition
 * @param {string} section of the page on what is measured
 */
export function term(word, definition, section) {
  return html`<dfn tabindex="0" data-definition=${definition} data-more=${moreOf(section)} aria-description=${definition}>${word}</dfn>`;
}

/** Where the page on what is measured has more about a word, as `data-more` has it. @param {string} section */
export function moreOf(section) {
  return `findings/measures#${section}`;
}

/** A parameter's dotted name as code, which may break after each dot. @param {string} name */
export function dotted(name) {
  return html`<code>${name.split(/(?<=\.)/).map((part, index) => (index ? html`<wbr>${part}` : part))}</code>`;
}

/** Words of which those in backticks are code. @param {string} words */
export function withCode(words) {
  return words.split("`").map((part, index) => (index % 2 ? html`<code>${part}</code>` : part));
}
