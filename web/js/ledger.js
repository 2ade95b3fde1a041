// The tables of what happened in a run: skipped steps with their culprits, and events. Newest first.

import { get, refusalOf } from "./api.js";
import { dotted, h, say } from "./dom.js";
import { count, plural, power, revived } from "./format.js";
import { html, nothing } from "./lit-html.js";
import { about } from "./range.js";
import { Table } from "./table.js";

/** @import { Column } from "./table.js" */
/** @import { Culprit, HappenedEvent, SharedSkip, Skip, View } from "../types/page.js" */

const PAGE = 50;
const SHOWN = 10;
const NAMED = 4;

/**
 * What the page of a run has to do with its ledgers: what its charts show, and how they are shown something else.
 * @typedef {{view: () => View, onView: (view: View) => void}} Page
 */

/** @param {Page} page @returns {Column<SharedSkip>[]} */
function skipColumns({ view, onView }) {
  const open = (/** @type {string} */ parameter) => onView({ ...view(), parameter });
  return [
    { name: "Step", number: true, opens: true, cell: (skip) => count(skip.step) },
    { name: "Optimizer", cell: (skip) => [skip.optimizer, skip.ranks_words].filter(Boolean).join(", ") },
    { name: "Cause", cell: (skip) => causeOf(skip) },
    { name: "First to overflow", cell: (skip) => culpritsOf(skip, open) },
    { name: "Scale", tight: true, cell: (skip) => movedScale(skip) },
  ];
}

const ORIGINS = { input: "the model's input", forward: "forward", loss: "the loss", backward: "backward" };
const LOSSES = { finite: "loss finite", overflowed: "loss finite, loss × scale not", not_finite: "loss not finite" };

const ORDERS = {
  learned: "in backward order (measured)",
  assumed: "in backward order (estimated)",
};

/** @type {Column<HappenedEvent>[]} */
const EVENT_COLUMNS = [
  { name: "Time", tight: true, cell: (event) => clock(event.time) },
  { name: "Event", cell: (event) => event.kind.replaceAll("_", " ") },
  { name: "Before step", number: true, opens: true, cell: (event) => (event.step === null ? "" : count(event.step)) },
  { name: "Rank", number: true, cell: (event) => count(event.rank) },
  { name: "Details", cell: (event) => details(event.detail) },
];

/** A table that grows by pages, whose rows move the charts there, and which says why it is empty. @template {{step: number | null}} Row */
class Ledger {
  #words = h("p", { class: "empty" }, "Loading…");
  #more = h("button", { type: "button", hidden: true, onclick: () => void this.#older() }, "Older");
  #limit = SHOWN;

  /**
   * @param {{title: string, name: string, run: string, none: string, columns: Column<any>[], key: (row: any) => string,
   *   page: Page, query?: string}} options
   */
  constructor({ title, name, run, none, columns, key, page, query = "" }) {
    this.run = run;
    this.name = name;
    this.none = none;
    this.page = page;
    this.query = query;
    this.table = new Table(title, columns, key, { onRow: ({ step }) => step !== null && page.onView(about(page.view(), step)) });
    this.element = h("section", { class: "ledger", "data-ledger": name }, h("h2", {}, title), this.#words, this.table.element, this.#more);
  }

  /** Fetches what is shown, or says why it was refused. Rejects where the server does not answer. */
  async refresh() {
    await this.#fetch().catch((error) => this.#fail(refusalOf(error)));
  }

  /** Fetches all that is shown: what was said of it may have changed. */
  async #fetch() {
    const path = `/runs/${encodeURIComponent(this.run)}/${this.name}?limit=${PAGE}${this.query}`;
    let { rows, next } = this.#read(await get(path));
    while (next !== null && rows.length < this.#limit) {
      const more = this.#read(await get(`${path}&cursor=${encodeURIComponent(next)}`));
      rows = [...rows, ...more.rows];
      next = more.next;
    }
    this.#show(rows, next !== null);
  }

  /** What the server does not answer now comes with the next news. */
  async #older() {
    this.#limit = this.#limit === SHOWN ? PAGE : this.#limit + PAGE;
    await this.refresh().catch(() => {});
  }

  /** @param {unknown} value @returns {{rows: Row[], next: string | null}} */
  #read(value) {
    const page = /** @type {Record<string, Row[]> & {next: string | null}} */ (value);
    return { rows: page[this.name] ?? [], next: page.next };
  }

  /** Marks the rows of the step that the charts mark. */
  point() {
    const { at, x } = this.page.view();
    this.table.point(({ step }) => step !== null && x === "step" && step === at);
  }

  /**
   * @param {Row[]} whole
   * @param {boolean} more whether the server has more of them
   */
  #show(whole, more) {
    this.table.update(whole.slice(0, this.#limit));
    this.point();
    this.#words.hidden = whole.length > 0;
    this.#more.hidden = !more && whole.length <= this.#limit;
    say(this.#words, this.none);
  }

  /** @param {string} why */
  #fail(why) {
    this.#words.hidden = false;
    say(this.#words, why);
  }
}

/**
 * @param {string} run
 * @param {Page} page
 */
export function skipLedger(run, page) {
  return new Ledger({
    title: "Skipped steps",
    name: "skips",
    run,
    none: "No steps skipped.",
    columns: skipColumns(page),
    key: (/** @type {SharedSkip} */ { step, scaler, optimizer }) => JSON.stringify([step, scaler, optimizer]),
    page,
    query: "&shared=true",
  });
}

/**
 * @param {string} run
 * @param {Page} page
 */
export function eventLedger(run, page) {
  return new Ledger({
    title: "Events",
    name: "events",
    run,
    none: "No event yet. Starts, ends and manual changes are listed here.",
    columns: EVENT_COLUMNS,
    key: (/** @type {HappenedEvent} */ event) => [event.stream, event.attempt, event.seq].join(" "),
    page,
  });
}

/** @param {Skip} skip */
function movedScale(skip) {
  return `${power(revived(skip.scale, skip.scale_kind))} → ${power(revived(skip.scale_after, skip.scale_after_kind))}`;
}

/** @param {Skip} skip */
function causeOf({ cause, origin, origin_module, loss }) {
  const words = /** @type {Record<string, string>} */ ({ inf: "✕ inf", nan: "◆ NaN", "inf+nan": "✕ inf, ◆ NaN" });
  const at = origin_module === null ? [] : [origin === "forward" ? ", first in " : ", first at ", dotted(origin_module)];
  const began = origin === null ? [] : [` in ${ORIGINS[origin]}`, ...at];
  const told = loss === null ? nothing : html`<span data-loss=${loss}>${LOSSES[loss]}</span>`;
  return html`<span data-origin=${origin ?? nothing}><span data-cause=${cause}>${words[cause] ?? "not known"}</span>${began}${told}</span>`;
}

/**
 * @param {Skip} skip
 * @param {(parameter: string) => void} open
 */
function culpritsOf(skip, open) {
  const total = Math.max(skip.culprit_parameters, skip.culprits.length);
  if (total === 0) return "not known";
  const rest = total - Math.min(NAMED, skip.culprits.length);
  const named = skip.culprits.slice(0, NAMED).map((culprit) => {
    const go = () => open(culprit.parameter);
    return html`<li><button type="button" class="opens" title="Open this parameter" @click=${go}>${dotted(culprit.parameter)}</button> ${amounts(culprit)}</li>`;
  });
  return html`<ol class="culprits">
    ${named}
    ${rest > 0 ? html`<li class="rest">and ${plural(rest, "more parameter")}</li>` : nothing}
    ${total > 1 ? html`<li class="rest">${ORDERS[skip.culprit_order]}</li>` : nothing}
  </ol>`;
}

/** @param {Culprit} culprit */
function amounts({ inf, nan }) {
  const words = [];
  if (inf) words.push(`${count(inf)} inf`);
  if (nan) words.push(`${count(nan)} NaN`);
  if (inf === null && nan === null) words.push("not counted");
  return words.join(", ");
}

/** @param {Record<string, unknown>} detail */
function details(detail) {
  return Object.entries(detail)
    .map(([name, value]) => `${name.replaceAll("_", " ")}: ${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join("; ");
}

/** @param {number} time */
export function clock(time) {
  return new Date(time / 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}
