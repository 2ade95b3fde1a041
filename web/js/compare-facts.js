// A table with a column for each run that is compared, and a line for each thing that is told of them.

import { h, keyed, mark, say } from "./dom.js";
import { plural } from "./format.js";

/** @typedef {{name: string, values: (string | null)[], differs: boolean}} Line */

const NONE = "–";

export class Facts {
  #head = h("tr");
  #body = h("tbody");
  #all = h("input", { type: "checkbox", onchange: () => this.#draw() });
  #label = h("span");
  #alike = h("label", { class: "tick" }, this.#all, this.#label);
  #none = h("p", { class: "empty", hidden: true }, "Nothing that is known of them differs.");
  /** @type {string[]} */
  #names = [];
  /** @type {Line[]} */
  #lines = [];

  /**
   * @param {string} title
   * @param {"differs"} [only] what alone is shown, unless the reader asks for all
   */
  constructor(title, only) {
    this.only = only;
    const table = h("table", { class: only ? "facts marked" : "facts" }, h("caption", { class: "unseen" }, title), h("thead", {}, this.#head), this.#body);
    this.element = h("section", { class: "ledger" }, h("h2", {}, title), h("div", { class: "sideways", tabindex: 0, role: "region", "aria-label": title }, table), this.#none, only ? this.#alike : null);
  }

  /**
   * @param {string[]} names of the runs
   * @param {Line[]} lines
   */
  update(names, lines) {
    this.#names = names;
    this.#lines = lines;
    this.#draw();
  }

  #draw() {
    const some = this.only && !this.#all.checked;
    const lines = some ? this.#lines.filter((line) => line.differs) : this.#lines;
    const alike = this.#lines.filter((line) => !line.differs).length;
    say(this.#label, `Show ${plural(alike, "identical field")}`);
    this.#none.hidden = lines.length > 0;
    keyed(this.#head, ["", ...this.#names].map((name, place) => ({ name, place })), {
      key: ({ place }) => String(place),
      make: ({ place }) => (place ? h("th", { scope: "col", dir: "auto", class: `run-${((place - 1) % 8) + 1}` }) : h("td")),
      update: (heading, { name }) => {
        say(heading, name);
        mark(heading, "title", name);
      },
    });
    keyed(this.#body, lines, { key: ({ name }) => name, make: () => h("tr"), update: (row, line) => this.#write(row, line) });
  }

  /**
   * @param {HTMLElement} row
   * @param {Line} line
   */
  #write(row, { name, values, differs }) {
    mark(row, "data-differs", differs ? "" : null);
    const cells = [name, ...values].map((text, place) => ({ text: text ?? NONE, place }));
    keyed(row, cells, {
      key: ({ place }) => String(place),
      make: ({ place }) => (place ? h("td", { dir: "auto" }) : h("th", { scope: "row" })),
      update: (cell, { text, place }) => {
        say(cell, text);
        if (place) mark(cell, "data-name", this.#names[place - 1] ?? "");
      },
    });
  }
}
