// Which columns the list of runs has, and in which order: the reader's choice, which the browser remembers.

import { h, keyed } from "./dom.js";
import { COLUMNS } from "./list-columns.js";
import { html, render } from "./lit-html.js";
import { popup } from "./menu.js";

/** @import { Column } from "./list-columns.js" */

const KEY = "ampmon.columns";
const USUAL = COLUMNS.filter(({ rare }) => !rare).map(({ name }) => name);

let names = remembered();
let shown = named();

/** The columns that are shown, the run's name first. */
export function shownColumns() {
  return shown;
}

export class ColumnChoice {
  #list = h("ul", { tabindex: -1 });

  /** @param {() => void} onChange */
  constructor(onChange) {
    this.onChange = onChange;
    const usual = h("button", { type: "button", class: "quiet", onclick: () => this.#choose(USUAL) }, "Usual columns");
    this.element = popup("columns", "Columns", "Choose and order the columns", h("div", { tabindex: -1 }, this.#list, usual)).element;
    this.#draw();
  }

  #draw() {
    const hidden = COLUMNS.map(({ name }) => name).filter((name) => !names.includes(name));
    // The name of a run stays: it has the link and the tick.
    keyed(this.#list, [...names, ...hidden].slice(1), {
      key: (name) => name,
      make: () => h("li"),
      update: (item, name) => render(this.#item(name), item),
    });
  }

  /** @param {string} name */
  #item(name) {
    const move = `Move ${name} to the left`;
    return html`
      <label class="tick"><input type="checkbox" .checked=${names.includes(name)} @change=${() => this.#toggle(name)}>${name}</label>
      <button type="button" class="quiet" aria-label=${move} ?disabled=${names.indexOf(name) < 2} @click=${() => this.#move(name)}>↑</button>
    `;
  }

  /** @param {string} name */
  #toggle(name) {
    this.#choose(names.includes(name) ? names.filter((each) => each !== name) : [...names, name]);
  }

  /** @param {string} name */
  #move(name) {
    const at = names.indexOf(name);
    this.#choose([...names.slice(0, at - 1), name, ...names.slice(at - 1).filter((each) => each !== name)]);
  }

  /** @param {string[]} chosen */
  #choose(chosen) {
    names = chosen;
    shown = named();
    try {
      if (String(names) === String(USUAL)) localStorage.removeItem(KEY);
      else localStorage.setItem(KEY, JSON.stringify(names));
    } catch {
      // Without storage the choice lasts as long as the page.
    }
    this.#draw();
    this.onChange();
  }
}

/** @returns {Column[]} */
function named() {
  return names.flatMap((name) => COLUMNS.find((column) => column.name === name) ?? []);
}

/** Columns that are not known any more are left out. @returns {string[]} */
function remembered() {
  try {
    const kept = /** @type {unknown} */ (JSON.parse(localStorage.getItem(KEY) ?? "null"));
    if (!Array.isArray(kept)) return USUAL;
    const known = new Set(COLUMNS.map(({ name }) => name));
    return [...new Set([...USUAL.slice(0, 1), ...kept])].filter((name) => known.has(name));
  } catch {
    return USUAL;
  }
}
