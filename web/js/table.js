// A table of columns, each a heading and what it says of a row. Narrow screens show a row as a small list.

import { h, keyed, mark, moreOf, term } from "./dom.js";
import { html, nothing, render } from "./lit-html.js";

/** @import { TemplateResult } from "./lit-html.js" */

/**
 * A column; `sort` is what the table is sorted by through its heading, `first` the order that a first click asks for,
 * `opens` whether its cell is a button for the row. `named` has a user's words, and `title` says them in full.
 * @template Row
 * @typedef {{name: string, cell: (row: Row) => string | TemplateResult, title?: (row: Row) => string, number?: boolean,
 *   tight?: boolean, named?: boolean, sort?: string, first?: "ascending", opens?: boolean, definition?: string,
 *   section?: string}} Column
 */

/** What a table is sorted by. @typedef {{sort: string, order: string}} Order */

/**
 * What the reader does to a table, where it can be done.
 * @template Row
 * @typedef {{onSort?: (order: Order) => void, onRow?: (row: Row) => void}} TableListener
 */

/** @template Row */
export class Table {
  body = h("tbody");
  #head = h("tr", { "aria-rowindex": 1 });
  /** @type {WeakMap<Element, Row>} */
  #rows = new WeakMap();
  /** @type {Order} */
  #order = { sort: "", order: "" };

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
    const head = h("thead", {}, this.#head);
    this.element = h("table", { class: listener.onRow && "opening", hidden: true }, h("caption", { class: "unseen" }, caption), head, this.body);
    this.body.addEventListener("click", ({ target }) => target instanceof Element && this.#open(target));
    this.arrange();
  }

  /** @param {Row[]} rows where there are none, there is no table */
  update(rows) {
    this.element.hidden = rows.length === 0;
    keyed(this.body, rows, { key: this.key, make: () => h("tr"), update: (element, row) => this.#write(element, row) });
  }

  /** Marks the rows that are looked at elsewhere on the page. @param {(row: Row) => boolean} isCurrent */
  point(isCurrent) {
    for (const element of this.body.children) {
      const row = this.#rows.get(element);
      mark(element, "aria-current", row !== undefined && isCurrent(row) ? "true" : null);
    }
  }

  /**
   * Has other columns, and says by their headings how the rows are sorted.
   * @type {(order?: Order, columns?: Column<Row>[]) => void}
   */
  arrange(order = this.#order, columns = this.columns) {
    this.#order = order;
    this.columns = columns;
    const headings = columns.map((column) => {
      const sorted = column.sort && column.sort === order.sort ? order.order : nothing;
      return html`<th scope="col" class=${classOf(column)} data-name=${column.name} aria-sort=${sorted}>${this.#heading(column)}</th>`;
    });
    render(headings, this.#head);
  }

  /** @param {Column<Row>} column */
  #heading({ name, sort, first, definition, section = "" }) {
    const { onSort } = this.listener;
    if (!sort || !onSort) return definition ? term(name, definition, section) : html`<span>${name}</span>`;
    const told = definition ?? nothing;
    const [usual, other] = first ? ["ascending", "descending"] : ["descending", "ascending"];
    const turn = () => onSort({ sort, order: this.#order.sort === sort && this.#order.order === usual ? other : usual });
    const more = definition ? moreOf(section) : nothing;
    return html`<button type="button" class="sort" data-definition=${told} data-more=${more} aria-description=${told} @click=${turn}>${name}</button>`;
  }

  /** @param {Element} target */
  #open(target) {
    const inside = target.closest("button, a, summary, input, tr");
    const element = target.closest("tr");
    const row = element && this.#rows.get(element);
    // What can be clicked for itself is no click on its row, and neither is the end of marking some of its text.
    const own = inside !== element && !inside?.matches("[data-opens]");
    if (row !== null && row !== undefined && !own && !String(getSelection())) this.listener.onRow?.(row);
  }

  /** @type {(element: HTMLElement, row: Row) => void} */
  #write(element, row) {
    this.#rows.set(element, row);
    render(this.cells(row), element);
  }

  /** @param {Row | null} row null is one that is not here yet */
  cells(row) {
    return this.columns.map((column) => {
      const content = row && column.cell(row);
      const opens = column.opens && content && this.listener.onRow;
      const shown = opens ? html`<button type="button" class="opens" data-opens>${content}</button>` : content;
      const title = (row && column.title?.(row)) ?? nothing;
      return html`<td data-name=${column.name} class=${classOf(column)} dir=${column.named ? "auto" : nothing} title=${title}>${shown}</td>`;
    });
  }
}

/** @param {{number?: boolean, tight?: boolean}} column */
function classOf({ number, tight }) {
  return number ? "number" : tight ? "tight" : nothing;
}
