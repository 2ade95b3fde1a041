// A table with a column for each compared run and a line for each fact.

import { plural } from "./format.js";
import { html, nothing } from "./lit-html.js";

const NONE = "–";

/** With `marked`, differences are marked, and identical lines are hidden until the reader asks for them.
 * @param {string} title @param {string[]} names of the runs @param {FactLine[]} lines @param {boolean} [marked] */
export function facts(title, names, lines, marked = false) {
  const alike = lines.filter((line) => !line.differs).length;
  const headings = names.map((name, place) => html`<th scope="col" dir="auto" class=${`run-${(place % 8) + 1}`} title=${name}>${name}</th>`);
  const rows = lines.map(({ name, values, differs }) => {
    const cells = values.map((value, place) => html`<td dir="auto" data-name=${names[place] ?? ""}>${value ?? NONE}</td>`);
    return html`<tr ?data-differs=${differs}><th scope="row">${name}</th>${cells}</tr>`;
  });
  return html`<section class="ledger">
    <h2>${title}</h2>
    <div class="sideways" tabindex="0" role="region" aria-label=${title}>
      <table class=${marked ? "facts marked" : "facts"}>
        <caption class="unseen">${title}</caption>
        <thead><tr><td></td>${headings}</tr></thead>
        <tbody>${rows}</tbody>
      </table>
    </div>
    <p class="empty" ?hidden=${alike < lines.length || !marked}>All recorded fields are identical.</p>
    ${marked ? html`<label class="tick"><input type="checkbox"><span>Show ${plural(alike, "identical field")}</span></label>` : nothing}
  </section>`;
}
