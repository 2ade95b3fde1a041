// A table of columns, and one under a heading that shows a few rows until the reader asks for more.

import { h, html, keyed, mark, moreOf, nothing, render, term } from "./dom.js";
import { refusalOf } from "./server.js";

/** @template Row */
export class Table {
  body = h("tbody");
  #head = h("tr", { "aria-rowindex": 1 });
  /** @type {WeakMap<Element, Row>} */
  #rows = new WeakMap();
  /** @type {Order} */
  #order = { sort: "", order: "" };

  /** `key` identifies a row.
   * @param {string} caption @param {Column<Row>[]} columns @param {(row: Row) => string} key @param {TableListener<Row>} [listener] */
  constructor(caption, columns, key, listener = {}) {
    this.columns = columns;
    this.key = key;
    this.listener = listener;
    const head = h("thead", {}, this.#head);
    this.element = h("table", { class: listener.onRow && "opening", hidden: true }, h("caption", { class: "unseen" }, caption), head, this.body);
    this.body.addEventListener("click", ({ target }) => target instanceof Element && this.#open(target));
    this.arrange();
  }

  /** @param {Row[]} rows without any, the table is hidden */
  update(rows) {
    this.element.hidden = rows.length === 0;
    keyed(this.body, rows, { key: this.key, make: () => h("tr"), update: (element, row) => this.#write(element, row) });
  }

  /** Mark the rows that are shown elsewhere on the page. @param {(row: Row) => boolean} isCurrent */
  point(isCurrent) {
    for (const element of this.body.children) {
      const row = this.#rows.get(element);
      mark(element, "aria-current", row !== undefined && isCurrent(row) ? "true" : null);
    }
  }

  /** Set the columns, and mark the sorted one. @type {(order?: Order, columns?: Column<Row>[]) => void} */
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
    // A click on a control in a row does not open the row, and neither does the end of a text selection.
    const own = inside !== element && !inside?.matches("[data-opens]");
    if (row !== null && row !== undefined && !own && !String(getSelection())) this.listener.onRow?.(row);
  }

  /** @type {(element: HTMLElement, row: Row) => void} */
  #write(element, row) {
    this.#rows.set(element, row);
    render(this.cells(row), element);
  }

  /** @param {Row | null} row null is not loaded yet */
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

/** The most rows that the server lists at once. */
export const ROWS_MAX = 1000;

/** @template Row */
export class Ledger {
  limit;
  most;
  /** @type {Read<Row>} */
  #read = { rows: [], more: "", words: "Loading…" };

  /** `read` rejects if the server does not answer, and gives null if its answer is out of date. `limit` and `most` are
   * the numbers of rows at first and at most; `beside` is put next to the heading.
   * @param {string} name @param {string} title @param {Table<Row>} table @param {(limit: number) => Promise<Read<Row> | null>} read
   * @param {{limit?: number, most?: number, beside?: HTMLElement}} [more] */
  constructor(name, title, table, read, { limit = 10, most = ROWS_MAX, beside } = {}) {
    this.title = title;
    this.table = table;
    this.read = read;
    this.limit = limit;
    this.most = most;
    this.beside = beside ?? nothing;
    this.element = h("section", { class: "ledger", "data-ledger": name });
    this.#draw();
  }

  /** Fetch and show the rows, or say why the server refused. Rejects if the server does not answer. */
  async refresh() {
    const { limit } = this;
    const read = await this.read(limit).catch((error) => ({ ...this.#read, words: refusalOf(error) }));
    // The rows of a larger limit may have come first.
    if (read && limit === this.limit) this.show(read);
  }

  /** @param {Read<Row>} read */
  show(read) {
    this.#read = read;
    this.table.update(read.rows);
    this.#draw();
  }

  /** Ignore errors: a later refresh fetches again. */
  #grow() {
    this.limit = Math.min(5 * this.limit, this.most);
    void this.refresh().catch(() => {});
  }

  #draw() {
    const { more, words, count = "", caption = "" } = this.#read;
    render(
      html`
        <header><h2>${this.title}</h2>${this.beside}<span class="more">${count}</span></header>
        <p class="caption" ?hidden=${!caption}>${caption}</p>
        <p class="empty" ?hidden=${!words}>${words}</p>
        ${this.table.element}
        <button type="button" ?hidden=${!more || this.limit === this.most} @click=${() => this.#grow()}>${more}</button>
      `,
      this.element,
    );
  }
}
