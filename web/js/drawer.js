// One parameter in detail, below the heatmap: its numbers, history, histogram and skips.

import { Refused, get } from "./api.js";
import { dotted, h, term } from "./dom.js";
import { count, plural } from "./format.js";
import { html, render } from "./lit-html.js";
import { Onscreen } from "./onscreen.js";
import { MEASURED, shapeWords } from "./parameters.js";
import { about } from "./range.js";
import { PARAMETERS } from "./words.js";

const SKIPS = 8;

/** @type {Column<ParameterRow>[]} */
const NUMBERS = [
  { name: "Shape", cell: (row) => `${shapeWords(row)}${row.shape.length > 1 ? `, ${plural(row.numel, "element")}` : ""}` },
  { name: "Type", cell: (row) => row.dtype },
  ...MEASURED,
];

export class Drawer {
  #shown = "";
  #version = "";
  #onscreen;
  #panels;
  /** @type {Detail | null} */
  #run = null;
  /** @type {{sampled: Sampled | null, skips: {skips: Skip[], next: string | null} | null} | null} */
  #read = null;

  /** @param {Charts} charts @param {(view: View) => void} onView */
  constructor(charts, onView) {
    this.charts = charts;
    this.onView = onView;
    this.element = h("section", { class: "part drawer", "aria-label": "Parameter details", hidden: true, onkeydown: (event) => this.#key(event) });
    this.#panels = ["parameter", "histogram"].map((name) => charts.panel(name).element);
    this.#draw();
    this.#onscreen = new Onscreen(this.element, () => void this.#fetch().catch(() => {}));
  }

  /** Rejects if the server does not answer. @type {(run: Detail, view: View) => Promise<void>} */
  async refresh(run, view) {
    this.#run = run;
    this.look(view);
    if (this.#onscreen.here) await this.#fetch();
  }

  /** Show the parameter's name at once, before its data arrives. @param {View} view */
  look({ parameter }) {
    this.element.hidden = parameter === null;
    if (parameter === this.#shown) return;
    const first = this.#shown === "" && this.#run === null;
    this.#shown = parameter ?? "";
    this.#read = null;
    if (parameter === null) return;
    this.#draw();
    // A page opened from a link stays at the top. A click scrolls to the drawer and focuses it, so Escape closes it.
    if (first) return;
    this.element.querySelector("h3")?.focus({ preventScroll: true });
    this.element.scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  close() {
    this.#onscreen.stop();
  }

  async #fetch() {
    const { stream, parameter } = this.charts.view;
    if (parameter === null || this.#run === null) return;
    const of = { ...(stream === null ? {} : { stream }) };
    const path = `/runs/${encodeURIComponent(this.#run.run_id)}`;
    const wanted = `${this.#run.sampled_updates} ${this.#run.skipped} ${stream} ${parameter}`;
    if (wanted === this.#version && this.#read?.sampled?.parameters.length) return;
    const [sampled, skips] = await Promise.all([
      get(`${path}/parameters?${new URLSearchParams({ ...of, name: parameter })}`).catch(unlessRefused),
      get(`${path}/skips?${new URLSearchParams({ ...of, parameter, limit: String(SKIPS) })}`).catch(unlessRefused),
    ]);
    if (parameter !== this.charts.view.parameter || stream !== this.charts.view.stream) return;
    this.#version = wanted;
    this.#read = {
      sampled: /** @type {Sampled | null} */ (sampled),
      skips: /** @type {{skips: Skip[], next: string | null} | null} */ (skips),
    };
    this.#draw();
  }

  #draw() {
    const module = moduleOf(this.#shown);
    const row = this.#read?.sampled?.parameters[0];
    const words = this.#read?.sampled && row ? `Scaled gradient at step ${count(this.#read.sampled.step)}, the newest sample.` : "Not in the newest sample.";
    const numbers = NUMBERS.map(({ name, definition, section = "", cell }) => {
      return html`<div><dt>${definition ? term(name, definition, section) : name}</dt><dd>${row && cell(row)}</dd></div>`;
    });
    render(
      html`
        <header>
          <h3 tabindex="-1">${dotted(this.#shown)}</h3>
          <button type="button" ?hidden=${module === null} @click=${() => this.#searchModule()}>Show all of ${module}</button>
          <button type="button" aria-label="Close this parameter" @click=${() => this.#choose(null)}>Close</button>
        </header>
        <p class="caption" role="status">${this.#read && words}</p>
        <dl class="facts">${row && numbers}</dl>
        <p class="blamed">${this.#read && this.#blame(this.#read.skips)}</p>
        ${this.#panels}
      `,
      this.element,
    );
  }

  /** @param {{skips: Skip[], next: string | null} | null} found the newest skips with this parameter as a culprit */
  #blame(found) {
    const steps = [...new Set((found?.skips ?? []).map(({ step }) => step))];
    const many = `${found?.next ? "more than " : ""}${plural(steps.length, "skip")}`;
    const buttons = steps.map((step, place) => {
      const go = () => this.onView(about(this.charts.view, step));
      return html`${place ? ", " : ""}<button type="button" class="opens" @click=${go}>${count(step)}</button>`;
    });
    return [term("Culprit", PARAMETERS.culprit.definition, PARAMETERS.culprit.section), steps.length ? ` in ${many}, the newest at step ` : " in no skips.", buttons];
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

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.key !== "Escape" || event.defaultPrevented) return;
    event.preventDefault();
    this.#choose(null);
  }
}

/** The module of a parameter; null for a parameter of the model itself. @param {string} parameter */
function moduleOf(parameter) {
  const end = parameter.lastIndexOf(".");
  return end > 0 ? parameter.slice(0, end) : null;
}

/** Turn a refusal into null: there is no such data. Other errors are rethrown. @param {unknown} error */
function unlessRefused(error) {
  if (error instanceof Refused) return null;
  throw error;
}
