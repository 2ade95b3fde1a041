// A table under a heading. It shows a few rows until the reader asks for more, and says why it is empty or stale.

import { refusalOf } from "./api.js";
import { h } from "./dom.js";
import { html, nothing, render } from "./lit-html.js";

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
