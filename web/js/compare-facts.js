// A table with a column for each run that is compared, and a line for each thing that is told of them.

import { h } from "./dom.js";
import { plural } from "./format.js";
import { html, nothing, render } from "./lit-html.js";

/** @typedef {{name: string, values: (string | null)[], differs: boolean}} Line */

const NONE = "–";

export class Facts {
  element = h("section", { class: "ledger" });
  #all = false;

  /**
   * @param {string} title
   * @param {"differs"} [only] what alone is shown, unless the reader asks for all
   */
  constructor(title, only) {
    this.title = title;
    this.only = only;
    this.update([], []);
  }

  /**
   * @param {string[]} names of the runs
   * @param {Line[]} lines
   */
  update(names, lines) {
    const shown = this.only && !this.#all ? lines.filter((line) => line.differs) : lines;
    const alike = lines.filter((line) => !line.differs).length;
    const turn = () => {
      this.#all = !this.#all;
      this.update(names, lines);
    };
    const headings = names.map((name, place) => html`<th scope="col" dir="auto" class=${`run-${(place % 8) + 1}`} title=${name}>${name}</th>`);
    const rows = shown.map(({ name, values, differs }) => {
      const cells = values.map((value, place) => html`<td dir="auto" data-name=${names[place] ?? ""}>${value ?? NONE}</td>`);
      return html`<tr ?data-differs=${differs}><th scope="row">${name}</th>${cells}</tr>`;
    });
    render(
      html`
        <h2>${this.title}</h2>
        <div class="sideways" tabindex="0" role="region" aria-label=${this.title}>
          <table class=${this.only ? "facts marked" : "facts"}>
            <caption class="unseen">${this.title}</caption>
            <thead><tr><td></td>${headings}</tr></thead>
            <tbody>${rows}</tbody>
          </table>
        </div>
        <p class="empty" ?hidden=${shown.length > 0}>Nothing that is known of them differs.</p>
        ${this.only ? html`<label class="tick"><input type="checkbox" @change=${turn}><span>Show ${plural(alike, "identical field")}</span></label>` : nothing}
      `,
      this.element,
    );
  }
}
