// The table of runs. Of ten thousand rows only those on the screen are on the page; it says which of how many they are.

import { h, keyed, mark } from "./dom.js";
import { shownColumns } from "./list-choice.js";
import { COLUMNS } from "./list-columns.js";
import { rowsOn } from "./windowed.js";

/** @import { Row } from "./list-columns.js" */

export class RunTable {
  #body = h("tbody");
  /** @type {HTMLTableCellElement[]} */
  #headings = [];
  #head = h("tr", { "aria-rowindex": 1 });
  #total = 0;
  #sort = "";
  #order = "";

  /** @param {{onSort: (sort: string, order: string) => void, onScroll: () => void, onChoose: (run: string, chosen: boolean) => void}} listener */
  constructor(listener) {
    this.listener = listener;
    this.element = h(
      "table",
      { class: "runs", hidden: true, onchange: (event) => this.#choose(event) },
      h("caption", { class: "unseen" }, "Runs"),
      h("thead", {}, this.#head),
      this.#body,
    );
    this.arrange();
    window.addEventListener("scroll", listener.onScroll, { passive: true });
    window.addEventListener("resize", listener.onScroll);
  }

  /** Has the columns that the reader chose, in their order; rows are to be drawn again. */
  arrange() {
    this.#headings = shownColumns().map(({ name, sort, number }) =>
      h(
        "th",
        { scope: "col", class: number ? "number" : null, "data-name": name },
        sort ? h("button", { type: "button", "data-sort": sort, onclick: () => this.#turn(sort) }, name) : h("span", {}, name),
      ),
    );
    this.#head.replaceChildren(...this.#headings);
    this.#body.replaceChildren();
    this.sorted(this.#sort, this.#order);
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
    [this.#sort, this.#order] = [sort, order];
    for (const heading of this.#headings) {
      const button = heading.querySelector("button");
      mark(heading, "aria-sort", button?.dataset["sort"] === sort ? order : null);
    }
  }

  /** @param {string} sort */
  #turn(sort) {
    const first = COLUMNS.find((column) => column.sort === sort)?.first ?? "descending";
    const now = this.#sort === sort ? this.#order : null;
    const other = first === "descending" ? "ascending" : "descending";
    this.listener.onSort(sort, now === first ? other : first);
  }

  /** @param {Event} event */
  #choose({ target }) {
    if (target instanceof HTMLInputElement) this.listener.onChoose(target.value, target.checked);
  }
}

function makeRow() {
  const cells = shownColumns().map(({ name, number, make }) =>
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
  shownColumns().forEach(({ write }, place) => {
    const cell = element.children[place];
    if (cell instanceof HTMLElement) write(cell, row);
  });
}
