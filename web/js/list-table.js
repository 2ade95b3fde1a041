// The table of runs. Of ten thousand rows only those on the screen are on the page; it says which of how many they are.

import { h, keyed, mark } from "./dom.js";
import { shownColumns } from "./list-choice.js";
import { COLUMNS } from "./list-columns.js";
import { html, nothing, render } from "./lit-html.js";
import { rowsOn } from "./windowed.js";

/** @import { Row } from "./list-columns.js" */

export class RunTable {
  #body = h("tbody");
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
    keyed(this.#body, placed, { key: ({ row, index }) => row?.run.run_id ?? `#${index}`, make: () => h("tr"), update: writeRow });
  }

  /**
   * Has the columns that the reader chose, in their order, and says what the rows are sorted by.
   * @param {string} [sort]
   * @param {string} [order]
   */
  arrange(sort = this.#sort, order = this.#order) {
    [this.#sort, this.#order] = [sort, order];
    const headings = shownColumns().map((column) => {
      const name = column.sort
        ? html`<button type="button" data-sort=${column.sort} @click=${() => this.#turn(column.sort ?? "")}>${column.name}</button>`
        : html`<span>${column.name}</span>`;
      const sorted = column.sort === sort ? order : nothing;
      return html`<th scope="col" class=${column.number ? "number" : nothing} data-name=${column.name} aria-sort=${sorted}>${name}</th>`;
    });
    render(headings, this.#head);
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

/**
 * @param {HTMLElement} element
 * @param {{row: Row | null, index: number}} placed
 */
function writeRow(element, { row, index }) {
  mark(element, "aria-rowindex", String(index + 2));
  mark(element, "data-coming", row ? null : "");
  mark(element, "data-chosen", row?.chosen ? "" : null);
  const cells = shownColumns().map(({ name, number, named, title, cell }) => {
    const about = (row && title?.(row)) ?? nothing;
    return html`<td data-name=${name} class=${number ? "number" : nothing} dir=${named ? "auto" : nothing} title=${about}>${row && cell(row)}</td>`;
  });
  render(cells, element);
}
