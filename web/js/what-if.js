// What is tried below charts: another scale, another policy, another number format's range.

import { queryOf } from "./address.js";
import { codeBlock, copyButton, h, html, nothing, renderForm, select, slider } from "./dom.js";
import { percent, twoTo } from "./format.js";
import { paced } from "./pace.js";
import { swatch } from "./readout.js";
import { get, wordsOf } from "./server.js";

const TRIED_MS = 100;
// A replay of a long run costs the server a second, so the same one is not repeated with each update.
const REST_MS = 15_000;

/** @type {{loss: keyof ReturnType<typeof lostAt>, words: string, role: string}[]} from top to bottom */
const LOSSES = [
  { loss: "overflow", words: "Overflow", role: "skip" },
  { loss: "subnormal", words: "Subnormal", role: "subnormal" },
  { loss: "below", words: "Below range", role: "below-grid" },
];

/** Below the what-if chart: a slider for the scale, its outcome in words, and the code for it. */
export class WhatIf {
  element = h("section", { class: "part whatif", "aria-label": "A scale to try", hidden: true });
  /** @type {Meta} */
  #meta = { title: "" };
  #scale = 0;
  /** Whether the reader is moving the slider. */
  #held = false;

  /** @param {Charts} charts */
  constructor(charts) {
    this.charts = charts;
    this.look = paced(async () => void (this.#held && charts.look(this.#view)), TRIED_MS);
    // Charts are not drawn during a drag, but this drag must move its chart.
    this.element.addEventListener("pointerdown", (event) => event.stopPropagation());
    charts.panel("whatif").onDrawn = (meta) => {
      this.#meta = meta;
      if (!this.#held) this.#scale = meta.slider?.value ?? 0;
      this.#draw();
    };
  }

  close() {
    this.look.stop();
  }

  get #view() {
    const { view } = this.charts;
    return { ...view, choices: { ...view.choices, whatif_scale: String(this.#scale) } };
  }

  /** The chart follows the slider. The address changes only when it stops. @param {number} scale */
  #move(scale) {
    this.#held = true;
    this.#scale = scale;
    this.#draw();
    this.look();
  }

  #choose() {
    if (this.#held) this.charts.go(this.#view);
    this.#held = false;
  }

  #draw() {
    const { slider: ends, sentence, code = "", standing = "" } = this.#meta;
    const one = this.charts.view.parameter !== null;
    const at = ends && { ...ends, value: this.#scale };
    const all = () => this.charts.go({ ...this.charts.view, parameter: null });
    // A single parameter may have no slider, but the button back to all of them stays.
    this.element.hidden = !ends && !one;
    renderForm(
      html`
        ${at ? slider({ label: "Scale to try", at, onMove: (scale) => this.#move(scale), onChosen: () => this.#choose() }) : nothing}
        <p class="sentence" role="status">${sentence}</p>
        <div class="ways">
          ${codeBlock(code, standing, copyButton(code))}
          ${one ? html`<button type="button" @click=${all}>Show all parameters</button>` : nothing}
        </div>
      `,
      this.element,
    );
  }
}

/** Below the simulator's chart: a form for the policy to try, its outcome, and a search for a better setting. */
export class Simulate {
  element = h("section", { class: "part simulate", "aria-label": "A policy to try", hidden: true });
  /** @type {Meta} */
  #meta = { title: "" };
  /** Errors by field. @type {Record<string, string>} */
  #wrong = {};
  #advice = "";
  #advising = false;

  /** @param {string} path the run's @param {Charts} charts */
  constructor(path, charts) {
    this.path = path;
    this.charts = charts;
    const panel = charts.panel("simulated");
    panel.restMs = REST_MS;
    panel.onDrawn = (meta) => this.#show(meta);
    panel.onRefused = (error) => this.#refuse(error);
  }

  /** @param {Meta} meta */
  #show(meta) {
    this.element.hidden = !meta.form;
    if (!meta.form) return;
    const refused = this.#wrong;
    this.#meta = meta;
    this.#wrong = {};
    this.#draw();
    for (const input of this.#inputs) {
      if (input !== document.activeElement || refused[input.name]) input.value = input.dataset["value"] ?? "";
    }
  }

  get #inputs() {
    return this.element.querySelectorAll("input");
  }

  #draw() {
    const { form, sentence, code = "", standing = "" } = this.#meta;
    const { policies = [], policy = "", numbers = [] } = form ?? {};
    const names = policies.map((each) => /** @type {const} */ ([each, each]));
    const fields = numbers.map(({ name, hint, value }) => {
      const wrong = this.#wrong[name];
      return html`<label>${name}<input name=${name} type="number" step="any" title=${hint} data-value=${value}
        aria-describedby=${`wrong-${name}`} aria-invalid=${wrong ? "true" : nothing} @change=${() => this.#choose(this.#setting())}
        ><span class="wrong" id=${`wrong-${name}`} role="alert">${wrong}</span></label>`;
    });
    renderForm(
      html`
        <form @submit=${(/** @type {Event} */ event) => event.preventDefault()}>
          <label>policy${select({ label: "Policy", options: names, chosen: policy, onChoose: (value) => this.#choose({ policy: value }) })}</label>
          ${fields}
        </form>
        <p class="sentence" role="status">${sentence}</p>
        <div class="ways">
          ${codeBlock(code, standing, copyButton(code))}
          <button type="button" ?hidden=${standing.startsWith("Recommended")} ?disabled=${this.#advising} @click=${() => void this.#advise()}>Find a better setting</button>
        </div>
        <p class="caption" role="status" ?hidden=${!this.#advice}>${this.#advice}</p>
      `,
      this.element,
    );
  }

  /** Show an error beside its field; the chart stays. Return whether it is shown. @param {Refused} error */
  #refuse({ field, message }) {
    const name = (field ?? "").replace(/^sim_/, "");
    if (!this.#meta.form?.numbers.some((each) => each.name === name)) return false;
    this.#wrong = { ...this.#wrong, [name]: message.replace(/^\w+: /, "") };
    this.#draw();
    return !this.element.hidden;
  }

  /** The whole setting in the form. @returns {Record<string, string>} */
  #setting() {
    const filled = [...this.#inputs].filter(({ value }) => value !== "");
    return { policy: this.element.querySelector("select")?.value ?? "", ...Object.fromEntries(filled.map(({ name, value }) => [name, value])) };
  }

  /** @param {Record<string, string>} setting the policy's defaults fill the rest */
  #choose(setting) {
    const { view } = this.charts;
    const prefix = this.#meta.form?.prefix ?? "";
    const others = Object.entries(view.choices).filter(([name]) => !name.startsWith(prefix));
    const ours = Object.entries(setting).map(([name, value]) => [prefix + name, value]);
    this.charts.go({ ...view, choices: Object.fromEntries([...others, ...ours]) });
  }

  async #advise() {
    this.#tell("Trying settings. This takes a few seconds for a long run.", true);
    try {
      const query = queryOf({ stream: this.charts.view.stream });
      const { recommended } = /** @type {Simulated} */ (await get(`${this.path}/simulate?${query}`));
      const { name, ...numbers } = recommended.policy;
      const set = Object.entries(numbers).flatMap(([key, value]) => (value === null ? [] : [[key, String(value)]]));
      this.#tell(recommended.code ? "" : recommended.words);
      this.#choose({ policy: name, ...Object.fromEntries(set) });
    } catch (error) {
      this.#tell(wordsOf(error));
    }
  }

  /** @param {string} words @param {boolean} [advising] whether the search goes on */
  #tell(words, advising = false) {
    this.#advice = words;
    this.#advising = advising;
    this.#draw();
  }
}

/** The shares of all elements that a format loses at the loss scale 2 ** level.
 * @param {Omit<FormatRange, "format" | "low" | "high">} window @param {number} level */
export function lostAt({ overflow, normal, smallest, first, counts, elements }, level) {
  const share = (/** @type {number} */ from, /** @type {number} */ to) =>
    counts.reduce((sum, count, row) => (from <= first + row + level && first + row + level < to ? sum + count : sum), 0) / elements;
  return { overflow: share(overflow, Infinity), subnormal: share(smallest, normal), below: share(-Infinity, smallest) };
}

/** Below the heatmap of exponents: a slider moves a number format's range over it and shows which shares it would lose. */
export class FormatWindow {
  element = h("section", { class: "part", "aria-label": "Elements lost at another loss scale", hidden: true });
  #overlay = h("div", { class: "window", hidden: true }, h("div", {}, ...LOSSES.map(({ words }) => h("i", { "data-words": words }))));
  /** @type {FormatRange | null} */
  #window = null;
  /** The slider at the newest recorded scale. @type {Choosable} */
  #recorded = { low: 0, high: 0, value: 0 };
  /** The level of another scale; null shows the format's range at the recorded ones. @type {number | null} */
  #tried = null;
  #losses = LOSSES.map((each) => ({ ...each, square: swatch(each.role) }));

  /** @param {Charts} charts */
  constructor(charts) {
    const panel = charts.panel("exponents");
    panel.plot.append(this.#overlay);
    panel.onDrawn = (meta, layout) => this.#show(meta, layout);
    this.#draw();
  }

  /** @param {Meta} meta @param {Layout} layout */
  #show({ slider: recorded, window }, { height, margin, yaxis }) {
    this.element.hidden = !window;
    if (!recorded || !window) return;
    this.#window = window;
    this.#recorded = recorded;
    const { overflow, normal, smallest, low, high } = window;
    const [bottom = 0, top = 1] = yaxis?.range ?? [];
    const row = (height - margin.t - margin.b) / (top - bottom);
    const { style } = this.#overlay;
    style.top = `${margin.t + (top - high) * row}px`;
    style.bottom = `${margin.b + (low - bottom) * row}px`;
    for (const [name, value] of Object.entries({ overflow, normal, smallest, low, rows: high - low })) style.setProperty(`--${name}`, String(value));
    this.#draw();
  }

  /** @param {number | null} level */
  #try(level) {
    this.#tried = level;
    this.#draw();
    // The button is disabled now, and must not keep the focus.
    if (level === null) this.element.querySelector("input")?.focus();
  }

  #draw() {
    const value = this.#tried ?? this.#recorded.value;
    const lost = this.#window ? lostAt(this.#window, value) : { overflow: 0, subnormal: 0, below: 0 };
    const total = percent(lost.overflow + lost.subnormal + lost.below);
    this.#overlay.hidden = this.#tried === null;
    this.#overlay.style.setProperty("--level", String(value));
    renderForm(
      html`
        ${slider({ label: "Loss scale to preview", at: { ...this.#recorded, value }, more: `, ${total} lost`, onMove: (level) => this.#try(level) })}
        <div class="shares">
          <dl>
            <div><dt>Lost in ${this.#window?.format} at ${twoTo(value)}</dt><dd>${total}</dd></div>
            ${this.#losses.map(({ loss, words, square }) => html`<div><dt>${square}${words}</dt><dd>${percent(lost[loss])}</dd></div>`)}
          </dl>
          <button type="button" ?disabled=${this.#tried === null} @click=${() => this.#try(null)}>Show recorded scale</button>
        </div>
      `,
      this.element,
    );
  }
}
