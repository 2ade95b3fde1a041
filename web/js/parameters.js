// The table of parameters at the newest sampled update: the worst first.

import { get } from "./api.js";
import { dotted, h, say } from "./dom.js";
import { bits, count, measure, percent, plural, revived, within } from "./format.js";
import { Table } from "./table.js";

/** @import { Column } from "./table.js" */
/** @import { ParameterRow } from "../types/page.js" */

const SHOWN = 20;

/** @type {Column<ParameterRow>[]} */
const COLUMNS = [
  { name: "Parameter", cell: (row) => dotted(row.name) },
  { name: "Shape", tight: true, cell: (row) => (row.shape.length ? row.shape.join(" × ") : "scalar") },
  { name: "Subnormal", number: true, cell: (row) => within(row.subnormal_fraction, row.subnormal_fraction_error) },
  { name: "Zero", number: true, cell: (row) => within(row.zero_fraction, row.zero_fraction_error) },
  { name: "inf, NaN", number: true, cell: (row) => (row.inf + row.nan ? `${count(row.inf)}, ${count(row.nan)}` : "0") },
  { name: "Headroom", number: true, cell: (row) => headroomWords(row) },
  { name: "Norm, unscaled", number: true, cell: (row) => measure(revived(row.norm, row.norm_kind)) },
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
    this.run = run;
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

  /**
   * Fetches the newest sample of a scaler, if one was taken. Rejects where the server does not answer.
   * @param {string | null} stream
   * @param {boolean} sampled
   */
  async refresh(stream, sampled) {
    if (!sampled) return this.#show();
    const query = stream === null ? "" : `?stream=${encodeURIComponent(stream)}`;
    const answer = await get(`/runs/${encodeURIComponent(this.run)}/parameters${query}`);
    const { step, parameters } = /** @type {{step: number, parameters: ParameterRow[]}} */ (answer);
    this.#rows = [...parameters].sort(worstFirst);
    say(this.#caption, captionOf(step, parameters));
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
 * @param {number} step
 * @param {ParameterRow[]} rows
 */
function captionOf(step, rows) {
  const made = rows.filter((row) => row.on_grid && !isLost(row)).length;
  const known = rows.filter((row) => !isLost(row)).length;
  const rest = known > made ? " The others' gradients were made in fp32; they are listed last." : "";
  const lost = rows.length - known ? ` Of ${plural(rows.length - known, "parameter")} every element is inf or NaN.` : "";
  const sampled = rows.some((row) => row.sampled) ? " A sample of each large one: ± is the standard error." : "";
  return `At step ${count(step)}: ${count(made)} of ${plural(rows.length, "parameter")} on fp16's grid, the most subnormal first.${rest}${lost}${sampled}`;
}

/** @param {ParameterRow} row */
function headroomWords(row) {
  const room = bits(revived(row.headroom_bits, row.headroom_bits_kind));
  return row.sampled ? `at most ${room}` : room;
}

/**
 * Whether nothing is known of its grid: NaN is on none, inf on all.
 * @param {ParameterRow} row
 */
function isLost(row) {
  return row.looked > 0 && row.inf + row.nan === row.looked;
}

/** @param {ParameterRow} row */
function gridWords(row) {
  if (isLost(row)) return "–";
  return row.on_grid ? "yes" : `no: ${percent(row.on_grid_fraction)} of it`;
}

/**
 * @param {ParameterRow} a
 * @param {ParameterRow} b
 */
function worstFirst(a, b) {
  return Number(b.on_grid) - Number(a.on_grid) || (b.subnormal_fraction ?? 0) - (a.subnormal_fraction ?? 0);
}
