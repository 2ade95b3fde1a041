// One parameter, looked at closely below the heatmap: its numbers, its history, its elements by magnitude, its skips.

import { Refused, get } from "./api.js";
import { dotted, h, keyed, say, term } from "./dom.js";
import { count, measure, plural, revived, within } from "./format.js";
import { Onscreen } from "./onscreen.js";
import { gridWords, headroomWords, lostWords, shapeWords } from "./parameters.js";
import { about } from "./range.js";
import { STATISTICS } from "./words.js";

/** @import { Charts } from "./charts.js" */
/** @import { Detail, ParameterRow, Sampled, Skip, View } from "../types/page.js" */

const SKIPS = 8;

/** @type {[name: string, told: {definition: string, section: string} | null, value: (row: ParameterRow) => string][]} */
const NUMBERS = [
  ["Shape", null, (row) => `${shapeWords(row)}${row.shape.length > 1 ? `, ${plural(row.numel, "element")}` : ""}`],
  ["Type", null, (row) => row.dtype],
  ["Subnormal", STATISTICS.subnormal, (row) => within(row.subnormal_fraction, row.subnormal_fraction_error)],
  ["Zero", STATISTICS.zero, (row) => within(row.zero_fraction, row.zero_fraction_error)],
  ["inf, NaN", STATISTICS.lost, lostWords],
  ["Headroom", STATISTICS.headroom, headroomWords],
  ["Norm, unscaled", STATISTICS.norm, (row) => measure(revived(row.norm, row.norm_kind))],
  ["fp16-representable", STATISTICS.on_grid, gridWords],
];

export class Drawer {
  #name = h("h3", { tabindex: -1 });
  #module = h("button", { type: "button", onclick: () => this.#searchModule() });
  #words = h("p", { class: "caption", role: "status" });
  #numbers = h("dl", { class: "facts" });
  #skips = h("p", { class: "blamed" });
  #shown = "";
  #version = "";
  #onscreen;
  /** @type {Detail | null} */
  #run = null;

  /**
   * @param {Charts} charts
   * @param {(view: View) => void} onView
   */
  constructor(charts, onView) {
    this.charts = charts;
    this.onView = onView;
    const close = h("button", { type: "button", "aria-label": "Close this parameter", onclick: () => this.#choose(null) }, "Close");
    this.element = h(
      "section",
      { class: "part drawer", "aria-label": "One parameter", hidden: true, onkeydown: (event) => this.#key(event) },
      h("header", {}, this.#name, this.#module, close),
      this.#words,
      this.#numbers,
      this.#skips,
      charts.panel("parameter").element,
      charts.panel("histogram").element,
    );
    this.#onscreen = new Onscreen(this.element, () => void this.#read().catch(() => {}));
  }

  /**
   * Shows the parameter that the view names, or nothing. Rejects where the server does not answer.
   * @param {Detail} run
   * @param {View} view
   */
  async refresh(run, view) {
    this.#run = run;
    this.look(view);
    if (this.#onscreen.here) await this.#read();
  }

  /** Shows at once which parameter it is of. @param {View} view */
  look({ parameter }) {
    this.element.hidden = parameter === null;
    if (parameter === this.#shown) return;
    const first = this.#shown === "" && this.#run === null;
    this.#shown = parameter ?? "";
    if (parameter === null) return;
    this.#name.replaceChildren(dotted(parameter));
    const module = moduleOf(parameter);
    this.#module.hidden = module === null;
    say(this.#module, module === null ? "" : `All of ${module}`);
    this.#numbers.replaceChildren();
    for (const words of [this.#words, this.#skips]) words.replaceChildren();
    // Who comes by a link begins at the top; who clicked is to see what came of it, and Escape takes it back.
    if (first) return;
    this.#name.focus({ preventScroll: true });
    this.element.scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  close() {
    this.#onscreen.stop();
  }

  async #read() {
    const { stream, parameter } = this.charts.view;
    if (parameter === null || this.#run === null) return;
    const of = { ...(stream === null ? {} : { stream }) };
    const path = `/runs/${encodeURIComponent(this.#run.run_id)}`;
    const wanted = `${this.#run.sampled_updates} ${this.#run.skipped} ${stream} ${parameter}`;
    if (wanted === this.#version && this.#numbers.childElementCount > 0) return;
    const [sampled, skips] = await Promise.all([
      get(`${path}/parameters?${new URLSearchParams({ ...of, name: parameter })}`).catch(unlessRefused),
      get(`${path}/skips?${new URLSearchParams({ ...of, parameter, limit: String(SKIPS) })}`).catch(unlessRefused),
    ]);
    if (parameter !== this.charts.view.parameter) return;
    this.#version = wanted;
    this.#tell(/** @type {Sampled | null} */ (sampled));
    this.#blame(/** @type {{skips: Skip[], next: string | null} | null} */ (skips));
  }

  /** @param {Sampled | null} sampled */
  #tell(sampled) {
    const row = sampled?.parameters[0];
    say(this.#words, sampled && row ? `Scaled gradient at step ${count(sampled.step)}, the newest sample.` : "Not in the newest sample.");
    keyed(this.#numbers, row ? NUMBERS : [], {
      key: ([name]) => name,
      make: ([name, told]) => h("div", {}, h("dt", {}, told ? term(name, told.definition, told.section) : name), h("dd")),
      update: (element, [, , value]) => say(/** @type {Element} */ (element.lastElementChild), row ? value(row) : ""),
    });
  }

  /** @param {{skips: Skip[], next: string | null} | null} found the newest skips that it was a culprit of */
  #blame(found) {
    const skips = [...new Map((found?.skips ?? []).map((skip) => [skip.step, skip])).values()];
    const many = `${found?.next ? "more than " : ""}${plural(skips.length, "skip")}`;
    this.#skips.replaceChildren(
      term("Culprit", STATISTICS.culprit.definition, STATISTICS.culprit.section),
      skips.length ? ` of ${many}, the newest at step ` : " of no skip.",
      ...skips.flatMap(({ step }, place) => [place ? ", " : "", h("button", { type: "button", class: "opens", onclick: () => this.onView(about(this.charts.view, step)) }, count(step))]),
    );
  }

  /** @param {string | null} parameter */
  #choose(parameter) {
    this.onView({ ...this.charts.view, parameter });
  }

  #searchModule() {
    const { view } = this.charts;
    const module = view.parameter === null ? null : moduleOf(view.parameter);
    if (module !== null) this.onView({ ...view, choices: { ...view.choices, search: `${module}.*` } });
  }

  /** @param {Event} event */
  #key(event) {
    if (!(event instanceof KeyboardEvent) || event.key !== "Escape" || event.defaultPrevented) return;
    event.preventDefault();
    this.#choose(null);
  }
}

/**
 * The module that a parameter is of; null for one of the model itself.
 * @param {string} parameter
 */
function moduleOf(parameter) {
  const end = parameter.lastIndexOf(".");
  return end > 0 ? parameter.slice(0, end) : null;
}

/**
 * What the server says no to is not there; that it does not answer is trouble.
 * @param {unknown} error
 */
function unlessRefused(error) {
  if (error instanceof Refused) return null;
  throw error;
}
