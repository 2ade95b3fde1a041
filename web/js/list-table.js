// The table of runs. Only the rows on the screen are on the page. ARIA attributes give their places.

import { h, keyed, mark } from "./dom.js";
import { shownColumns } from "./list-choice.js";
import { render } from "./lit-html.js";
import { Table } from "./table.js";
import { rowsOn } from "./windowed.js";

/** @extends {Table<ListRow>} */
export class RunTable extends Table {
  #total = 0;
  #onScroll;

  /** @param {{onSort: (order: Order) => void, onScroll: () => void, onChoose: (run: string, chosen: boolean) => void}} listener */
  constructor({ onSort, onScroll, onChoose }) {
    super("Runs", shownColumns(), ({ run }) => run.run_id, { onSort });
    this.element.classList.add("runs");
    this.body.addEventListener("change", ({ target }) => {
      if (target instanceof HTMLInputElement) onChoose(target.value, target.checked);
    });
    this.#onScroll = onScroll;
    window.addEventListener("scroll", onScroll, { passive: true });
    window.addEventListener("resize", onScroll);
  }

  close() {
    window.removeEventListener("scroll", this.#onScroll);
    window.removeEventListener("resize", this.#onScroll);
  }

  /** A row's height in pixels, which the style sheet sets for the screen's width. */
  get rowHeight() {
    return parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) || 40;
  }

  /** The rows to draw: the first, and the one after the last. */
  get shown() {
    // Pseudo-elements of the body take the space of the rows above and below.
    return rowsOn({ top: this.body.getBoundingClientRect().top, height: window.innerHeight, row: this.rowHeight, total: this.#total });
  }

  /** @param {number} total @param {number} first @param {(ListRow | null)[]} rows from `first` on; null is not loaded yet */
  draw(total, first, rows) {
    this.#total = total;
    this.element.hidden = total === 0;
    mark(this.element, "aria-rowcount", String(total + 1));
    this.element.style.setProperty("--above", `${first * this.rowHeight}px`);
    this.element.style.setProperty("--below", `${(total - first - rows.length) * this.rowHeight}px`);
    const placed = rows.map((row, index) => ({ row, index: first + index }));
    keyed(this.body, placed, {
      key: ({ row, index }) => (row ? this.key(row) : `#${index}`),
      make: () => h("tr"),
      update: (element, { row, index }) => {
        mark(element, "aria-rowindex", String(index + 2));
        mark(element, "data-coming", row ? null : "");
        mark(element, "data-chosen", row?.chosen ? "" : null);
        render(this.cells(row), element);
      },
    });
  }
}
