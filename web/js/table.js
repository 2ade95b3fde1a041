// A table of columns, each a heading and what it says of a row. Narrow screens show a row as a small list.

import { explained, h, keyed, mark, say, term } from "./dom.js";

/**
 * A column; `sort` is what the table is sorted by through its heading, `opens` whether its cell is a button for the row.
 * @template Row
 * @typedef {{name: string, cell: (row: Row) => string | Node, number?: boolean, tight?: boolean, sort?: string,
 *   opens?: boolean, definition?: string, section?: string}} Column
 */

/** How a table is sorted: what by, and whether the other way round than is usual. @typedef {{sort: string, backwards: boolean}} Order */

/**
 * What the reader does to a table, where it can be done.
 * @template Row
 * @typedef {{onSort?: (order: Order) => void, onRow?: (row: Row) => void}} TableListener
 */

/** @template Row */
export class Table {
  #body = h("tbody");
  /** @type {HTMLElement[]} */
  #headings;
  /** @type {WeakMap<Element, Row>} */
  #rows = new WeakMap();
  /** @type {Order} */
  #order = { sort: "", backwards: false };

  /**
   * @param {string} caption
   * @param {Column<Row>[]} columns
   * @param {(row: Row) => string} key what tells one row from another; what it says does not change
   * @param {TableListener<Row>} [listener]
   */
  constructor(caption, columns, key, listener = {}) {
    this.columns = columns;
    this.key = key;
    this.listener = listener;
    this.#headings = columns.map((column) => h("th", { scope: "col", class: classOf(column) }, this.#heading(column)));
    this.element = h(
      "table",
      { class: listener.onRow ? "opening" : null },
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, ...this.#headings)),
      this.#body,
    );
    this.#body.addEventListener("click", (event) => this.#open(event));
  }

  /** @param {Row[]} rows */
  update(rows) {
    keyed(this.#body, rows, { key: this.key, make: (row) => this.#make(row), update: (element, row) => this.#update(element, row) });
  }

  /**
   * Marks the rows that are looked at elsewhere on the page.
   * @param {(row: Row) => boolean} isCurrent
   */
  point(isCurrent) {
    for (const element of this.#body.children) {
      const row = this.#rows.get(element);
      mark(element, "aria-current", row !== undefined && isCurrent(row) ? "true" : null);
    }
  }

  /**
   * Says by its headings how the rows are sorted.
   * @param {Order} order
   */
  sorted(order) {
    this.#order = order;
    this.columns.forEach(({ sort }, index) => {
      const heading = this.#headings[index];
      if (heading) mark(heading, "aria-sort", sort && sort === order.sort ? (order.backwards ? "ascending" : "descending") : null);
    });
  }

  /** @param {Column<Row>} column */
  #heading({ name, sort, definition, section }) {
    const { onSort } = this.listener;
    if (!sort || !onSort) return definition ? term(name, definition, section) : name;
    const told = definition ? explained(definition, section) : {};
    const turn = () => onSort({ sort, backwards: sort === this.#order.sort && !this.#order.backwards });
    return h("button", { type: "button", class: "sort", onclick: turn, ...told }, name);
  }

  /** @param {Event} event */
  #open({ target }) {
    if (!(target instanceof Element) || !this.listener.onRow) return;
    const inside = target.closest("button, a, summary, input, tr");
    const element = target.closest("tr");
    const row = element && this.#rows.get(element);
    // What can be clicked for itself is no click on its row, and neither is the end of marking some of its text.
    const own = inside !== element && !inside?.matches("[data-opens]");
    if (row !== null && row !== undefined && !own && !String(getSelection())) this.listener.onRow(row);
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
    this.#rows.set(element, row);
    this.columns.forEach(({ cell, opens }, index) => {
      const place = element.children[index];
      if (!place) return;
      const content = cell(row);
      if (opens && content !== "" && this.listener.onRow) {
        if (!place.firstChild) place.append(h("button", { type: "button", class: "opens", "data-opens": true }, content));
      } else if (typeof content === "string") say(place, content);
      else if (!place.firstChild?.isEqualNode(content)) place.replaceChildren(content);
    });
  }
}

/** @param {{number?: boolean, tight?: boolean}} column */
function classOf({ number, tight }) {
  return number ? "number" : tight ? "tight" : null;
}
