// The table of runs. Of ten thousand rows only those on the screen are on the page; it says which of how many they are.

import { h, keyed, mark } from "./dom.js";
import { COLUMNS } from "./list-columns.js";
import { rowsOn } from "./windowed.js";

/** @import { Row } from "./list-columns.js" */

export class RunTable {
  #body = h("tbody");
  /** @type {HTMLTableCellElement[]} */
  #headings;
  #total = 0;

  /** @param {{onSort: (sort: string, order: string) => void, onScroll: () => void, onChoose: (run: string, chosen: boolean) => void}} listener */
  constructor(listener) {
    this.listener = listener;
    this.#headings = COLUMNS.map(({ name, sort, number }) =>
      h("th", { scope: "col", class: number ? "number" : null, "data-name": name }, h("button", { type: "button", "data-sort": sort, onclick: () => this.#turn(sort) }, name)),
    );
    this.element = h(
      "table",
      { class: "runs", hidden: true, onchange: (event) => this.#choose(event) },
      h("caption", { class: "unseen" }, "Runs"),
      h("thead", {}, h("tr", { "aria-rowindex": 1 }, ...this.#headings)),
      this.#body,
    );
    window.addEventListener("scroll", listener.onScroll, { passive: true });
    window.addEventListener("resize", listener.onScroll);
  }

  close() {
    window.removeEventListener("scroll", this.listener.onScroll);
    window.removeEventListener("resize", this.listener.onScroll);
  }

  /** A row's height in pixels, as the style sheet has it for this width. */
  get rowHeight() {
    return parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) || 40;
  }

  /** The rows that are to be there: the first, and the one after the last. */
  get shown() {
    // Empty rows of the body, made by the style sheet, stand in the place of those above and below.
    return rowsOn({ top: this.#body.getBoundingClientRect().top, height: window.innerHeight, row: this.rowHeight, total: this.#total });
  }

  /**
   * Draws the rows from `first` on, of `total`.
   * @param {number} total
   * @param {number} first
   * @param {(Row | null)[]} rows null is one that is not here yet
   */
  draw(total, first, rows) {
    this.#total = total;
    this.element.hidden = total === 0;
    mark(this.element, "aria-rowcount", String(total + 1));
    this.element.style.setProperty("--above", `${first * this.rowHeight}px`);
    this.element.style.setProperty("--below", `${(total - first - rows.length) * this.rowHeight}px`);
    const placed = rows.map((row, index) => ({ row, index: first + index }));
    keyed(this.#body, placed, { key: ({ row, index }) => row?.run.run_id ?? `#${index}`, make: makeRow, update: writeRow });
  }

  /**
   * Says what the rows are sorted by.
   * @param {string} sort
   * @param {string} order
   */
  sorted(sort, order) {
    COLUMNS.forEach((column, index) => {
      const heading = this.#headings[index];
      if (heading) mark(heading, "aria-sort", column.sort === sort ? order : null);
    });
  }

  /** @param {string} sort */
  #turn(sort) {
    const index = COLUMNS.findIndex((column) => column.sort === sort);
    const now = this.#headings[index]?.getAttribute("aria-sort");
    const first = COLUMNS[index]?.first ?? "descending";
    const other = first === "descending" ? "ascending" : "descending";
    this.listener.onSort(sort, now === first ? other : first);
  }

  /** @param {Event} event */
  #choose({ target }) {
    if (target instanceof HTMLInputElement) this.listener.onChoose(target.value, target.checked);
  }
}

function makeRow() {
  const cells = COLUMNS.map(({ name, number, make }) =>
    h("td", { "data-name": name, class: number ? "number" : null }, ...(make?.() ?? [])),
  );
  return h("tr", {}, ...cells);
}

/**
 * @param {HTMLElement} element
 * @param {{row: Row | null, index: number}} placed
 */
function writeRow(element, { row, index }) {
  mark(element, "aria-rowindex", String(index + 2));
  mark(element, "data-coming", row ? null : "");
  if (!row) return;
  mark(element, "data-chosen", row.chosen ? "" : null);
  COLUMNS.forEach(({ write }, place) => {
    const cell = element.children[place];
    if (cell instanceof HTMLElement) write(cell, row);
  });
}
