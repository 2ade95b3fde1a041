// The table of parameters at the newest sampled update: the worst first.

import { get } from "./api.js";
import { h, say } from "./dom.js";
import { bits, count, measure, percent, plural } from "./format.js";
import { Table } from "./table.js";

/** @import { Column } from "./table.js" */
/** @import { ParameterRow } from "../types/page.js" */

const SHOWN = 20;
const ON_GRID = 0.99;

/** @type {Column<ParameterRow>[]} */
const COLUMNS = [
  { name: "Parameter", cell: (row) => h("code", {}, row.name) },
  { name: "Shape", cell: (row) => (row.shape.length ? row.shape.join(" × ") : "scalar") },
  { name: "Subnormal", number: true, cell: (row) => percent(share(row.subnormal, row)) },
  { name: "Zero", number: true, cell: (row) => percent(share(row.zeros, row)) },
  { name: "inf, NaN", number: true, cell: (row) => (row.inf + row.nan ? `${count(row.inf)}, ${count(row.nan)}` : "0") },
  { name: "Headroom", number: true, cell: (row) => bits(row.headroom_bits) },
  { name: "Norm, unscaled", number: true, cell: (row) => measure(row.norm) },
  { name: "On fp16's grid", number: true, cell: (row) => gridWords(row) },
];

export class Parameters {
  #table = new Table("Parameters at the newest sampled update", COLUMNS, (row) => row.name);
  #caption = h("p", { class: "caption" });
  #words = h("p", { class: "empty" }, "Loading…");
  #all = h("button", { type: "button", hidden: true, onclick: () => this.#showAll() });
  /** @type {ParameterRow[]} */
  #rows = [];
  #limit = SHOWN;

  /** @param {string} run */
  constructor(run) {
    this.path = `/runs/${encodeURIComponent(run)}/parameters`;
    this.element = h(
      "section",
      { class: "ledger", "data-ledger": "parameters" },
      h("h2", {}, "Parameters"),
      this.#caption,
      this.#words,
      this.#table.element,
      this.#all,
    );
    this.#table.element.hidden = true;
  }

  /** Fetches the newest sample. Rejects where the server does not answer. */
  async refresh() {
    const { value, fresh } = await get(this.path);
    if (!fresh) return;
    const answer = /** @type {{step: number | null, parameters: ParameterRow[]}} */ (value);
    this.#rows = [...answer.parameters].sort(worstFirst);
    const grid = this.#rows.filter(isOnGrid).length;
    say(
      this.#caption,
      answer.step === null || this.#rows.length === 0
        ? ""
        : `At step ${count(answer.step)}: ${plural(grid, "parameter")} of ${count(this.#rows.length)} on fp16's grid, ` +
            "the most subnormal first. The others' gradients were made in fp32 and are listed last.",
    );
    this.#show();
  }

  #showAll() {
    this.#limit = Infinity;
    this.#show();
  }

  #show() {
    this.#table.update(this.#rows.slice(0, this.#limit));
    this.#table.element.hidden = this.#rows.length === 0;
    this.#words.hidden = this.#rows.length > 0;
    say(this.#words, "No gradient sampled yet, so there is nothing to say of single parameters.");
    this.#all.hidden = this.#rows.length <= this.#limit;
    say(this.#all, `Show all ${count(this.#rows.length)}`);
  }
}

/**
 * @param {number} part
 * @param {ParameterRow} row
 */
function share(part, row) {
  return row.looked ? part / row.looked : null;
}

/** @param {ParameterRow} row */
function isOnGrid(row) {
  return (row.on_grid_fraction ?? 0) >= ON_GRID;
}

/** @param {ParameterRow} row */
function gridWords(row) {
  return isOnGrid(row) ? "yes" : `no: ${percent(row.on_grid_fraction)} of it`;
}

/**
 * @param {ParameterRow} a
 * @param {ParameterRow} b
 */
function worstFirst(a, b) {
  return Number(isOnGrid(b)) - Number(isOnGrid(a)) || (share(b.subnormal, b) ?? 0) - (share(a.subnormal, a) ?? 0);
}
