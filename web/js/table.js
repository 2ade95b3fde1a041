// A table of columns, each a heading and what it says of a row. Narrow screens show a row as a small list.

import { h, keyed, say } from "./dom.js";

/**
 * @template Row
 * @typedef {{name: string, cell: (row: Row) => string | Node, number?: boolean, tight?: boolean}} Column
 */

/** @template Row */
export class Table {
  #body = h("tbody");

  /**
   * @param {string} caption
   * @param {Column<Row>[]} columns
   * @param {(row: Row) => string} key what tells one row from another; what it says does not change
   */
  constructor(caption, columns, key) {
    this.columns = columns;
    this.key = key;
    const headings = columns.map((column) => h("th", { scope: "col", class: classOf(column) }, column.name));
    this.element = h(
      "table",
      {},
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, ...headings)),
      this.#body,
    );
  }

  /** @param {Row[]} rows */
  update(rows) {
    keyed(this.#body, rows, { key: this.key, make: (row) => this.#make(row), update: (element, row) => this.#update(element, row) });
  }

  /** @param {Row} row */
  #make(row) {
    const cells = this.columns.map((column) => h("td", { "data-name": column.name, class: classOf(column) }));
    return h("tr", {}, ...cells);
  }

  /**
   * @param {HTMLElement} element
   * @param {Row} row
   */
  #update(element, row) {
    this.columns.forEach(({ cell }, index) => {
      const place = element.children[index];
      if (!place) return;
      const content = cell(row);
      if (typeof content === "string") say(place, content);
      else if (!place.firstChild) place.append(content);
    });
  }
}

/** @param {{number?: boolean, tight?: boolean}} column */
function classOf({ number, tight }) {
  return number ? "number" : tight ? "tight" : null;
}
