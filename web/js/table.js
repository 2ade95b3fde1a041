// A table of columns, and one under a heading that shows a few rows until the reader asks for more.

import { h, html, keyed, mark, moreOf, nothing, render, renderForm, term } from "./dom.js";
import { refusalOf } from "./server.js";

/** The most rows that the server lists at once. */
export const ROWS_MAX = 1000;

/** @template Row */
export class Table {
  body = h("tbody");
  #head = h("tr", { "aria-rowindex": 1 });
  /** @type {WeakMap<Element, Row>} */
  #rows = new WeakMap();
  /** @type {Order} */
  #order = { sort: "", order: "" };

  /** @param {TableOptions<Row>} of */
  constructor(of) {
    this.of = of;
    this.columns = of.columns;
    const [caption, head] = [h("caption", { class: "unseen" }, of.caption), h("thead", {}, this.#head)];
    this.element = h("table", { class: of.onRow && "opening", hidden: true }, caption, head, this.body);
    this.body.addEventListener("click", ({ target }) => target instanceof Element && this.#open(target));
    this.arrange();
  }

  /** @param {Row[]} rows without any, the table is hidden */
  update(rows) {
    this.element.hidden = rows.length === 0;
    keyed(this.body, rows, { key: this.of.key, make: () => h("tr"), update: (element, row) => this.#write(element, row) });
    this.point();
  }

  /** Mark the rows that are shown elsewhere on the page. */
  point() {
    for (const element of this.body.children) {
      const row = this.#rows.get(element);
      mark(element, "aria-current", row !== undefined && this.of.isCurrent?.(row) ? "true" : null);
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
  #heading(column) {
    const { name, sort, first, definition = nothing, section = "" } = column;
    const { onSort } = this.of;
    if (!sort || !onSort) return term(name, column);
    const [usual, other] = first ? ["ascending", "descending"] : ["descending", "ascending"];
    const turn = () => onSort({ sort, order: this.#order.sort === sort && this.#order.order === usual ? other : usual });
    const more = definition === nothing ? nothing : moreOf(section);
    return html`<button type="button" class="sort" data-definition=${definition} data-more=${more} aria-description=${definition} @click=${turn}>${name}</button>`;
  }

  /** @param {Element} target */
  #open(target) {
    const inside = target.closest("button, a, summary, input, tr");
    const element = target.closest("tr");
    const row = element && this.#rows.get(element);
    // A click on a control in a row does not open the row, and neither does the end of a text selection.
    const own = inside !== element && !inside?.matches("[data-opens]");
    if (row !== null && row !== undefined && !own && !String(getSelection())) this.of.onRow?.(row);
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
      const opens = column.opens && content && this.of.onRow;
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

/** @template Row */
export class Ledger {
  /** @type {Read<Row>} */
  #read = { rows: [], more: "", words: "Loading…" };

  /** @param {LedgerOptions<Row>} of */
  constructor(of) {
    this.of = of;
    this.limit = of.limit ?? 10;
    this.most = of.most ?? ROWS_MAX;
    this.table = new Table({ caption: of.title, ...of });
    this.element = h("section", { class: "ledger", "data-ledger": of.name ?? of.title });
    this.#draw();
  }

  /** Fetch and show the rows, or say why the server refused. Rejects if the server does not answer. */
  async refresh() {
    const { limit } = this;
    const read = await this.of.read(limit).catch((error) => ({ ...this.#read, words: refusalOf(error) }));
    // An answer may be out of date, and the rows of a larger limit may have come first.
    if (read === null || limit !== this.limit) return;
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
    renderForm(
      html`
        <header><h2>${this.of.title}</h2>${this.of.beside?.() ?? nothing}<span class="more">${count}</span></header>
        <p class="caption" ?hidden=${!caption}>${caption}</p>
        <p class="empty" ?hidden=${!words}>${words}</p>
        ${this.table.element}
        <button type="button" ?hidden=${!more || this.limit === this.most} @click=${() => this.#grow()}>${more}</button>
      `,
      this.element,
      "header input",
    );
  }
}
