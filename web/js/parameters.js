// The table of parameters at the newest sampled update, searched, sorted and paged by the server.

import { chosen } from "./address.js";
import { get } from "./api.js";
import { pathOf } from "./changing.js";
import { STATISTICS } from "./declared.js";
import { dotted } from "./dom.js";
import { bits, count, measure, percent, plural, revived, within } from "./format.js";
import { Ledger } from "./ledger.js";
import { offerSearch, searchField } from "./search.js";
import { Table } from "./table.js";
import { CELL_DEFINITIONS, PARAMETERS } from "./words.js";

const PAGE = 20;
/** The trainer's name for a parameter if it has no model: "parameter 4 [64 × 3]". */
const NAMELESS = /^parameter \d+ \[/;

/** What a cell says of a statistic, if that is more than its value. @type {Record<string, (row: ParameterRow) => string>} */
const CELLS = {
  subnormal: (row) => within(row.subnormal_fraction, row.subnormal_fraction_error),
  zero: (row) => within(row.zero_fraction, row.zero_fraction_error),
  headroom: headroomOf,
  norm: (row) => measure(revived(row.norm, row.norm_kind)),
  on_grid: gridOf,
};
const UNITS = { share: percent, magnitude: measure, headroom: bits };

/** The columns of measured values. @type {Column<ParameterRow>[]} */
export const MEASURED = Object.entries(STATISTICS).map(([name, { title, unit, definition, section }]) => {
  const cell = CELLS[name] ?? ((row) => UNITS[unit](revived(row.statistics[name] ?? null, row.statistics_kinds[name] ?? null)));
  return { name: title, sort: name, number: true, cell, definition: CELL_DEFINITIONS[name] ?? definition, section };
});
MEASURED.splice(2, 0, { name: "inf, NaN", sort: "lost", number: true, cell: ({ inf, nan }) => (inf + nan ? `${count(inf)}, ${count(nan)}` : "0"), ...PARAMETERS.lost });

/** @type {Column<ParameterRow>[]} */
const COLUMNS = [
  { name: "Parameter", sort: "model", opens: true, cell: (row) => dotted(row.name), ...PARAMETERS.parameter },
  { name: "Shape", tight: true, cell: (row) => shapeWords(row) },
  ...MEASURED,
];

/** @extends {Ledger<ParameterRow>} */
export class Parameters extends Ledger {
  /** @type {Order} */
  #order = { sort: "worst", order: "descending" };
  #sampled = false;
  #search;

  /** @param {string} run @param {Viewer} page */
  constructor(run, page) {
    const table = new Table("Parameters at the newest sampled step", COLUMNS, (row) => row.name, {
      onSort: (order) => this.#sort(order),
      onRow: (row) => page.onView({ ...page.view(), parameter: row.name }),
    });
    const search = searchField("search", "Find parameters by part of a name; * and ? are wildcards", "Find parameters", (found) => this.#find(found));
    super("parameters", "Parameters", table, () => this.#fetch(), { limit: PAGE, beside: search });
    this.run = run;
    this.page = page;
    this.#search = search;
  }

  /** Fetch the newest sample, if one was taken. Rejects if the server does not answer. */
  async refresh(sampled = this.#sampled) {
    this.#sampled = sampled;
    offerSearch(this.#search, this.page.view().choices["search"] ?? "");
    await super.refresh();
    this.table.arrange(this.#order);
    this.point();
  }

  async #fetch() {
    if (!this.#sampled) return { rows: [], more: "", words: "No gradient sampled yet." };
    const asked = this.#query;
    const sampled = /** @type {Sampled} */ (await get(`${pathOf({ run_id: this.run })}/parameters?${asked}`));
    if (asked !== this.#query) return null;
    const { parameters: rows, found } = sampled;
    const left = found - rows.length;
    return {
      rows,
      more: left > 0 ? `Show ${count(Math.min(left, 4 * this.limit))} more of ${count(found)}` : "",
      words: rows.length ? "" : "No parameter matches. Search for part of a name.",
      caption: captionOf(sampled, this.#order),
    };
  }

  get #query() {
    const { stream, choices } = this.page.view();
    const query = new URLSearchParams({ sort: this.#order.sort, limit: String(this.limit) });
    if (this.#order.order === "ascending") query.set("backwards", "true");
    if (stream !== null) query.set("stream", stream);
    if (choices["search"]) query.set("search", choices["search"]);
    return query.toString();
  }

  /** Mark the parameter that is open. */
  point() {
    const { parameter } = this.page.view();
    this.table.point((row) => row.name === parameter);
  }

  /** @param {string} search */
  #find(search) {
    const view = this.page.view();
    this.limit = PAGE;
    this.page.onView({ ...view, choices: chosen(view.choices, "search", search) });
  }

  /** Ignore errors: a later refresh fetches again. @param {Order} order */
  #sort(order) {
    this.#order = order;
    void this.refresh().catch(() => {});
  }
}

/** @param {Sampled} sampled @param {Order} order */
export function captionOf({ step, total, found, on_grid, overflowed, sampled, parameters }, { sort }) {
  const rest = total - overflowed > on_grid ? ` The others' gradients were computed in fp32${sort === "worst" ? "; they are listed last" : ""}.` : "";
  const lost = overflowed ? ` In ${plural(overflowed, "parameter")}, every element is inf or NaN.` : "";
  const part = sampled ? " Large parameters are sampled: ± is the standard error." : "";
  const those = found < total ? ` The search matches ${count(found)}.` : "";
  const first = sort === "worst" ? ", the most subnormal first" : "";
  const nameless = parameters.some(({ name }) => NAMELESS.test(name)) ? " A parameter without a name shows its index: pass model= to GradScaler() or watch()." : "";
  return `At step ${count(step)}: ${count(on_grid)} of ${plural(total, "parameter")} representable in fp16${first}.${rest}${lost}${part}${those}${nameless}`;
}

/** @param {ParameterRow} row */
export function shapeWords({ shape }) {
  return shape.length ? shape.join(" × ") : "scalar";
}

/** @param {ParameterRow} row */
function headroomOf(row) {
  const room = bits(revived(row.headroom_bits, row.headroom_bits_kind));
  return row.sampled ? `at most ${room}` : room;
}

/** @param {ParameterRow} row */
function gridOf(row) {
  // If all elements are NaN or inf, the grid says nothing: inf is always on it, and NaN never.
  if (row.looked > 0 && row.inf + row.nan === row.looked) return "–";
  return row.on_grid ? "yes" : `no: ${percent(row.on_grid_fraction)}`;
}
