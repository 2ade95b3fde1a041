// A table of columns, each a heading and what it says of a row. Narrow screens show a row as a small list.

import { h, keyed, mark, moreOf, term } from "./dom.js";
import { html, nothing, render } from "./lit-html.js";

/** @import { TemplateResult } from "./lit-html.js" */

/**
 * A column; `sort` is what the table is sorted by through its heading, `opens` whether its cell is a button for the row.
 * @template Row
 * @typedef {{name: string, cell: (row: Row) => string | TemplateResult, number?: boolean, tight?: boolean, sort?: string,
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
  #head = h("tr");
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
    this.element = h(
      "table",
      { class: listener.onRow ? "opening" : null, hidden: true },
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, this.#head),
      this.#body,
    );
    this.#body.addEventListener("click", (event) => this.#open(event));
    this.sorted(this.#order);
  }

  /** @param {Row[]} rows where there are none, there is no table */
  update(rows) {
    this.element.hidden = rows.length === 0;
    keyed(this.#body, rows, { key: this.key, make: () => h("tr"), update: (element, row) => this.#write(element, row) });
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
    const headings = this.columns.map((column) => {
      const sorted = column.sort && column.sort === order.sort ? (order.backwards ? "ascending" : "descending") : nothing;
      return html`<th scope="col" class=${classOf(column)} aria-sort=${sorted}>${this.#heading(column)}</th>`;
    });
    render(headings, this.#head);
  }

  /** @param {Column<Row>} column */
  #heading({ name, sort, definition, section = "" }) {
    const { onSort } = this.listener;
    if (!sort || !onSort) return definition ? term(name, definition, section) : name;
    const told = definition ?? nothing;
    const turn = () => onSort({ sort, backwards: sort === this.#order.sort && !this.#order.backwards });
    return html`<button type="button" class="sort" data-definition=${told} data-more=${moreOf(section)} aria-description=${told} @click=${turn}>${name}</button>`;
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

  /**
   * @param {HTMLElement} element
   * @param {Row} row
   */
  #write(element, row) {
    this.#rows.set(element, row);
    const cells = this.columns.map((column) => {
      const content = column.cell(row);
      const opens = column.opens && content !== "" && this.listener.onRow;
      const shown = opens ? html`<button type="button" class="opens" data-opens>${content}</button>` : content;
      return html`<td data-name=${column.name} class=${classOf(column)}>${shown}</td>`;
    });
    render(cells, element);
  }
}

/** @param {{number?: boolean, tight?: boolean}} column */
function classOf({ number, tight }) {
  return number ? "number" : tight ? "tight" : nothing;
}
