// Which columns the list of runs has, and in which order. The browser remembers the reader's choice.

import { h, keyed } from "./dom.js";
import { COLUMNS } from "./list-columns.js";
import { html, render } from "./lit-html.js";
import { popup } from "./menu.js";
import { remembered, remember } from "./remembering.js";

const KEY = "ampmon.columns";
const USUAL = COLUMNS.filter(({ rare }) => !rare).map(({ name }) => name);

/** Unknown columns are dropped. "Run" always stays: it has the link and the checkbox. */
let names = [...new Set(["Run", ...storedColumns()])].filter(columnOf);

/** @returns {string[]} */
function storedColumns() {
  try {
    const kept = /** @type {unknown} */ (JSON.parse(remembered(KEY) ?? "null"));
    return Array.isArray(kept) ? kept : USUAL;
  } catch {
    return USUAL;
  }
}

/** @param {string} name */
function columnOf(name) {
  return COLUMNS.find((column) => column.name === name);
}

/** The shown columns, the run's name first. */
export function shownColumns() {
  return names.map((name) => /** @type {ListColumn} */ (columnOf(name)));
}

/** A popup to choose and order the columns. @param {() => void} onChange */
export function columnChoice(onChange) {
  const list = h("ul", { tabindex: -1 });
  const element = h("div");

  function draw() {
    const hidden = COLUMNS.map(({ name }) => name).filter((name) => !names.includes(name));
    keyed(list, [...names, ...hidden].slice(1), { key: (name) => name, make: () => h("li"), update: (item, name) => render(itemOf(name), item) });
  }

  /** @param {string} name */
  function itemOf(name) {
    const others = names.filter((each) => each !== name);
    const at = names.indexOf(name);
    const toggle = () => choose(at < 0 ? [...names, name] : others);
    return html`
      <label class="tick"><input type="checkbox" .checked=${at >= 0} @change=${toggle}>${name}</label>
      <button type="button" class="quiet" aria-label=${`Move ${name} to the left`} ?disabled=${at < 2} @click=${() => choose(others.toSpliced(at - 1, 0, name))}>↑</button>
    `;
  }

  /** @param {string[]} chosen */
  function choose(chosen) {
    names = chosen;
    remember(KEY, String(names) === String(USUAL) ? null : JSON.stringify(names));
    draw();
    onChange();
  }

  draw();
  const usual = html`<button type="button" class="quiet" @click=${() => choose(USUAL)}>Default columns</button>`;
  render(popup("columns", "Columns", "Choose and order the columns", html`<div tabindex="-1">${list}${usual}</div>`), element);
  return element;
}
