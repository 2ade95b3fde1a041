// The table of parameters at the newest sampled update, a page at a time: searched and sorted by the server.

import { get, refusalOf } from "./api.js";
import { dotted, h, say } from "./dom.js";
import { bits, count, measure, percent, plural, revived, within } from "./format.js";
import { offerSearch, searchField } from "./search.js";
import { Table } from "./table.js";
import { STATISTICS } from "./words.js";

/** @import { Column, Order } from "./table.js" */
/** @import { ParameterRow, Sampled, View } from "../types/page.js" */

const PAGE = 20;
const LIMIT_MAX = 1000;
/** What the trainer calls a parameter that no model names: "parameter 4 [64 × 3]". */
const NAMELESS = /^parameter \d+ \[/;

/** What is measured of a parameter. @type {Column<ParameterRow>[]} */
export const MEASURED = [
  { name: "Subnormal", sort: "subnormal", number: true, cell: (row) => within(row.subnormal_fraction, row.subnormal_fraction_error), ...STATISTICS.subnormal },
  { name: "Zero", sort: "zero", number: true, cell: (row) => within(row.zero_fraction, row.zero_fraction_error), ...STATISTICS.zero },
  { name: "inf, NaN", sort: "lost", number: true, cell: ({ inf, nan }) => (inf + nan ? `${count(inf)}, ${count(nan)}` : "0"), ...STATISTICS.lost },
  { name: "Headroom", sort: "headroom", number: true, cell: headroomOf, ...STATISTICS.headroom },
  { name: "Norm, unscaled", sort: "norm", number: true, cell: (row) => measure(revived(row.norm, row.norm_kind)), ...STATISTICS.norm },
  { name: "fp16-representable", sort: "on_grid", number: true, cell: gridOf, ...STATISTICS.on_grid },
];

/** @type {Column<ParameterRow>[]} */
const COLUMNS = [
  { name: "Parameter", sort: "model", opens: true, cell: (row) => dotted(row.name), ...STATISTICS.parameter },
  { name: "Shape", tight: true, cell: (row) => shapeWords(row) },
  ...MEASURED,
];

export class Parameters {
  #table = new Table("Parameters at the newest sampled step", COLUMNS, (row) => row.name, {
    onSort: (order) => this.#sort(order),
    onRow: (row) => this.onView({ ...this.#view(), parameter: row.name }),
  });
  #caption = h("p", { class: "caption" });
  #words = h("p", { class: "empty" }, "Loading…");
  #more = h("button", { type: "button", hidden: true, onclick: () => this.#showMore() });
  #search = searchField("search", "Find parameters: part of a name, or * and ?", "Find parameters", (search) => this.#find(search));
  /** @type {Order} */
  #order = { sort: "worst", backwards: false };
  #limit = PAGE;
  #sampled = false;

  /**
   * @param {string} run
   * @param {() => View} view what the charts show
   * @param {(view: View) => void} onView
   */
  constructor(run, view, onView) {
    this.run = run;
    this.#view = view;
    this.onView = onView;
    this.element = h(
      "section",
      { class: "ledger", "data-ledger": "parameters" },
      h("header", {}, h("h2", {}, "Parameters"), this.#search),
      this.#caption,
      this.#words,
      this.#table.element,
      this.#more,
    );
  }

  /** @type {() => View} */
  #view;

  /**
   * Fetches the newest sample of a scaler, if one was taken, or says why it was refused. Rejects where the server does not answer.
   * @param {boolean} sampled
   */
  async refresh(sampled) {
    await this.#fetch(sampled).catch((error) => this.#fail(refusalOf(error)));
  }

  /** @param {boolean} sampled */
  async #fetch(sampled) {
    this.#sampled = sampled;
    offerSearch(this.#search, this.#view().choices["search"] ?? "");
    if (!sampled) return this.#show(null);
    const asked = this.#query;
    const answer = await get(`/runs/${encodeURIComponent(this.run)}/parameters?${asked}`);
    if (asked === this.#query) this.#show(/** @type {Sampled} */ (answer));
  }

  /** What the table is of, as the server is asked for it. */
  get #query() {
    const { stream, choices } = this.#view();
    const query = new URLSearchParams({ sort: this.#order.sort, limit: String(this.#limit) });
    if (this.#order.backwards) query.set("backwards", "true");
    if (stream !== null) query.set("stream", stream);
    if (choices["search"]) query.set("search", choices["search"]);
    return query.toString();
  }

  /** Marks the parameter that is looked at. */
  point() {
    const { parameter } = this.#view();
    this.#table.point((row) => row.name === parameter);
  }

  /** @param {Sampled | null} sampled */
  #show(sampled) {
    const rows = sampled?.parameters ?? [];
    this.#table.update(rows);
    this.#table.sorted(this.#order);
    this.#words.hidden = rows.length > 0;
    say(this.#words, sampled ? "No parameter matches. Search for part of a name." : "No gradient sampled yet.");
    say(this.#caption, sampled ? captionOf(sampled, this.#order) : "");
    const left = (sampled?.found ?? 0) - rows.length;
    this.#more.hidden = left <= 0 || rows.length >= LIMIT_MAX;
    say(this.#more, `Show ${count(Math.min(left, 4 * PAGE))} more of ${count(sampled?.found ?? 0)}`);
    this.point();
  }

  /** @param {string} why */
  #fail(why) {
    this.#words.hidden = false;
    say(this.#words, why);
  }

  /** @param {string} search */
  #find(search) {
    const view = this.#view();
    const { search: _, ...others } = view.choices;
    this.#limit = PAGE;
    this.onView({ ...view, choices: search ? { ...others, search } : others });
  }

  /** @param {Order} order */
  #sort(order) {
    this.#order = order;
    void this.#again();
  }

  #showMore() {
    this.#limit = Math.min(this.#limit + 4 * PAGE, LIMIT_MAX);
    void this.#again();
  }

  /** What the server does not answer now comes with the next news. */
  async #again() {
    await this.refresh(this.#sampled).catch(() => {});
  }
}

/**
 * @param {Sampled} sampled
 * @param {Order} order
 */
export function captionOf({ step, total, found, on_grid, overflowed, sampled, parameters }, { sort }) {
  const rest = total - overflowed > on_grid ? ` The others' gradients were computed in fp32${sort === "worst" ? "; they are listed last" : ""}.` : "";
  const lost = overflowed ? ` Of ${plural(overflowed, "parameter")} every element is inf or NaN.` : "";
  const part = sampled ? " A sample of each large one: ± is the standard error." : "";
  const those = found < total ? ` ${count(found)} found.` : "";
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
  // Nothing is known of the grid of what is all NaN or inf: NaN is on none, inf on all.
  if (row.looked > 0 && row.inf + row.nan === row.looked) return "–";
  return row.on_grid ? "yes" : `no: ${percent(row.on_grid_fraction)} of it`;
}
