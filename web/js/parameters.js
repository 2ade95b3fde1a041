// The table of parameters at the newest sampled update, searched, sorted and paged by the server, and one parameter in detail.

import { queryOf } from "./address.js";
import { motion } from "./browser.js";
import { DECLARED, dotted, h, html, render, searchField, term } from "./dom.js";
import { count, NONE, plural } from "./format.js";
import { onscreen } from "./panel.js";
import { about } from "./range.js";
import { get, refusalOf } from "./server.js";
import { Ledger } from "./table.js";

const { statistics: STATISTICS, terms: TERMS } = DECLARED;
const PAGE = 20;
const SKIPS = 8;

/** The columns of measured values. @type {Column<ParameterRow>[]} */
const MEASURED = Object.entries(STATISTICS).map(([name, { title, ...others }]) => {
  return { name: title, sort: name, number: true, cell: ({ words }) => words[name] ?? NONE, ...others };
});
MEASURED.splice(2, 0, { name: "inf, NaN", sort: "lost", number: true, cell: ({ words }) => words["lost"] ?? NONE, ...TERMS["lost"] });

/** @type {Column<ParameterRow>[]} */
const COLUMNS = [
  { name: "Parameter", sort: "model", opens: true, cell: (row) => dotted(row.name), ...TERMS["parameter"] },
  { name: "Shape", tight: true, cell: (row) => shapeWords(row) },
  ...MEASURED,
];

/** @type {Column<ParameterRow>[]} */
const DETAILS = [
  { name: "Shape", cell: (row) => `${shapeWords(row)}${row.shape.length > 1 ? `, ${plural(row.numel, "element")}` : ""}` },
  { name: "Type", cell: (row) => row.dtype },
  ...MEASURED,
];

/** @extends {Ledger<ParameterRow>} */
export class Parameters extends Ledger {
  /** @type {Order} */
  #order = { sort: "worst", order: "descending" };
  #sampled = false;

  /** @param {string} path the run's @param {Charts} charts */
  constructor(path, charts) {
    const search = () => ({
      name: "search",
      label: "Find parameters by part of a name; * and ? are wildcards",
      placeholder: "Find parameters",
      search: charts.view.choices["search"] ?? "",
      onSearch: (/** @type {string} */ found) => {
        this.limit = PAGE;
        charts.choose("search", found);
      },
    });
    super({
      name: "parameters",
      title: "Parameters",
      caption: "Parameters at the newest sampled step",
      columns: COLUMNS,
      key: ({ name }) => name,
      isCurrent: ({ name }) => name === charts.view.parameter,
      onSort: (order) => this.#sort(order),
      onRow: (row) => charts.go({ ...charts.view, parameter: row.name }),
      beside: () => searchField(search()),
      limit: PAGE,
      read: () => this.#fetch(),
    });
    this.path = path;
    this.charts = charts;
  }

  /** Fetch the newest sample, if one was taken. Rejects if the server does not answer. */
  async refresh(sampled = this.#sampled) {
    this.#sampled = sampled;
    await super.refresh();
    this.table.arrange(this.#order);
  }

  async #fetch() {
    if (!this.#sampled) return { rows: [], more: "", words: "No gradient sampled." };
    const asked = this.#query;
    const sampled = /** @type {Sampled} */ (await get(`${this.path}/parameters?${asked}`));
    if (asked !== this.#query) return null;
    const { parameters: rows, found, caption } = sampled;
    const left = Math.min(found, this.most) - rows.length;
    return {
      rows,
      more: left > 0 ? `Show ${count(Math.min(left, 4 * this.limit))} more of ${count(found)}` : "",
      words: rows.length ? "" : "No parameter matches. Search for part of a name.",
      caption,
    };
  }

  get #query() {
    const { stream, choices } = this.charts.view;
    const { sort, order } = this.#order;
    const backwards = order === "ascending" ? "true" : "";
    return String(queryOf({ sort, limit: this.limit, backwards, stream, search: choices["search"] }));
  }

  /** Ignore errors: a later refresh fetches again. @param {Order} order */
  #sort(order) {
    this.#order = order;
    void this.refresh().catch(() => {});
  }
}

/** One parameter in detail, below the heatmap: its numbers, history, histogram and skips. */
export class Drawer {
  element = h("section", { class: "part drawer", "aria-label": "Parameter details", hidden: true, onkeydown: (event) => this.#key(event) });
  #shown = "";
  #version = "";
  /** @type {Detail | null} */
  #run = null;
  /** What the server answered, or why it refused. @type {[Sampled, FoundSkips] | string | null} */
  #read = null;

  /** @param {string} path the run's @param {Charts} charts */
  constructor(path, charts) {
    this.path = path;
    this.charts = charts;
    this.panels = ["parameter", "histogram"].map((name) => charts.panel(name).element);
    this.onscreen = onscreen(this.element, () => void this.#fetch().catch(() => {}));
  }

  /** Rejects if the server does not answer. @param {Detail | null} run */
  async refresh(run) {
    this.look();
    this.#run = run;
    if (this.onscreen.here) await this.#fetch();
  }

  /** Show the parameter's name at once, before its data arrives. */
  look() {
    const { parameter } = this.charts.view;
    this.element.hidden = parameter === null;
    if (parameter === this.#shown) return;
    const first = this.#shown === "" && this.#run === null;
    this.#shown = parameter ?? "";
    this.#read = null;
    this.#version = "";
    if (parameter === null) return;
    this.#draw();
    // A page opened from a link stays at the top. A click scrolls to the drawer and focuses it, so Escape closes it.
    if (first) return;
    this.element.querySelector("h3")?.focus({ preventScroll: true });
    this.element.scrollIntoView({ behavior: motion(), block: "nearest" });
  }

  close() {
    this.onscreen.stop();
  }

  async #fetch() {
    const { stream, parameter } = this.charts.view;
    if (parameter === null || this.#run === null) return;
    const wanted = `${this.#run.sampled_updates} ${this.#run.skipped} ${stream} ${parameter}`;
    if (wanted === this.#version) return;
    const answers = await Promise.all([
      get(`${this.path}/parameters?${queryOf({ stream, name: parameter })}`),
      get(`${this.path}/skips?${queryOf({ stream, parameter, limit: SKIPS })}`),
    ]).catch(refusalOf);
    if (parameter !== this.charts.view.parameter || stream !== this.charts.view.stream) return;
    this.#read = /** @type {[Sampled, FoundSkips] | string} */ (answers);
    this.#version = typeof this.#read !== "string" && this.#read[0].parameters.length ? wanted : "";
    this.#draw();
  }

  #draw() {
    const [sampled, skips, why] = typeof this.#read === "string" ? [null, null, this.#read] : (this.#read ?? []);
    const module = moduleOf(this.#shown);
    const all = () => this.charts.choose("search", `${module}.*`);
    const row = sampled?.parameters[0];
    const words = row ? `Scaled gradient at step ${count(sampled?.step ?? 0)}, the newest sample.` : "Not in the newest sample.";
    const numbers = row && DETAILS.map((each) => html`<div><dt>${term(each.name, each)}</dt><dd>${each.cell(row)}</dd></div>`);
    const steps = [...new Set(skips?.skips.map(({ step }) => step))];
    const many = `${skips?.next ? "more than " : ""}${plural(steps.length, "skip")}`;
    const buttons = steps.map((step, place) => {
      const go = () => this.charts.go(about(this.charts.view, step));
      return html`${place ? ", " : ""}<button type="button" class="opens" @click=${go}>${count(step)}</button>`;
    });
    const blamed = [term("Culprit", TERMS["culprit"]), steps.length ? ` in ${many}, the newest at ${steps.length > 1 ? "steps" : "step"} ` : " in no skips.", buttons];
    render(
      html`
        <header>
          <h3 tabindex="-1">${dotted(this.#shown)}</h3>
          <button type="button" ?hidden=${module === null} @click=${all}>Show all of ${module}</button>
          <button type="button" aria-label="Close this parameter" @click=${() => this.#leave()}>Close</button>
        </header>
        <p class="caption" role="status">${sampled ? words : why}</p>
        <dl class="facts">${numbers}</dl>
        <p class="blamed">${skips && blamed}</p>
        ${this.panels}
      `,
      this.element,
    );
  }

  #leave() {
    this.charts.go({ ...this.charts.view, parameter: null });
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.key !== "Escape" || event.defaultPrevented) return;
    event.preventDefault();
    this.#leave();
  }
}

/** @param {ParameterRow} row */
const shapeWords = ({ shape }) => shape.length ? shape.join(" × ") : "scalar";

/** The module of a parameter; null for a parameter of the model itself. @param {string} parameter */
function moduleOf(parameter) {
  const end = parameter.lastIndexOf(".");
  return end > 0 ? parameter.slice(0, end) : null;
}
