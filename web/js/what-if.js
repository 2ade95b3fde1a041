// What is tried below charts: another scale, another policy, another number format's range.

import { codeBlock, copyButton, h, html, nothing, render, renderForm, say, select, Slider } from "./dom.js";
import { percent, twoTo } from "./format.js";
import { paced } from "./pace.js";
import { swatch } from "./readout.js";
import { get } from "./server.js";

const TRIED_MS = 100;

export class WhatIf {
  #slider;
  #look;

  /** @param {Charts} charts @param {(view: View) => void} onView */
  constructor(charts, onView) {
    this.charts = charts;
    this.onView = onView;
    this.#look = paced(async () => charts.look(this.#view), TRIED_MS);
    // The chart follows the slider. The address changes only when it stops.
    this.#slider = new Slider("Scale to try", this.#look, () => onView(this.#view));
    this.element = h("section", { class: "part whatif", "aria-label": "A scale to try", hidden: true });
    // Charts are not drawn during a drag, but this drag must move its chart.
    this.element.addEventListener("pointerdown", (event) => event.stopPropagation());
    const panel = charts.panelOf("whatif");
    if (panel) panel.onDrawn = (meta) => this.#show(meta);
  }

  close() {
    this.#look.stop();
  }

  /** @param {Meta} meta */
  #show({ slider, sentence, code, standing }) {
    const one = this.charts.view.parameter !== null;
    // A single parameter may have no slider, but the button back to all of them stays.
    this.element.hidden = !slider && !one;
    this.#slider.element.hidden = !slider;
    if (slider) this.#slider.show(slider);
    const all = () => this.onView({ ...this.charts.view, parameter: null });
    render(
      html`
        ${this.#slider.element}
        <p class="sentence" role="status">${sentence}</p>
        <div class="ways">
          ${codeBlock(code ?? "", standing ?? "", copyButton(code ?? ""))}
          ${one ? html`<button type="button" @click=${all}>Show all parameters</button>` : nothing}
        </div>
      `,
      this.element,
    );
  }

  get #view() {
    const { view } = this.charts;
    return { ...view, choices: { ...view.choices, whatif_scale: String(this.#slider.value) } };
  }
}

// A replay of a long run costs the server a second, so the same one is not repeated with each update.
const REST_MS = 15_000;

/** @type {Record<string, string>} */
const HINTS = {
  init_scale: "initial loss scale",
  growth_factor: "factor of each growth",
  backoff_factor: "factor of each back-off after an overflow",
  growth_interval: "steps without an overflow before the scale grows",
};

export class Simulate {
  /** @type {Meta} */
  #meta = { title: "" };
  /** Errors by field. @type {Record<string, string>} */
  #wrong = {};
  #advice = "";
  #advising = false;

  /** @param {string} run @param {Charts} charts @param {(view: View) => void} onView */
  constructor(run, charts, onView) {
    this.run = run;
    this.charts = charts;
    this.onView = onView;
    this.element = h("section", { class: "part simulate", "aria-label": "A policy to try", hidden: true });
    const panel = charts.panelOf("simulated");
    if (!panel) return;
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
      const value = meta.form.numbers[input.name] ?? "";
      if (input !== document.activeElement || refused[input.name]) input.value = String(value);
    }
  }

  get #inputs() {
    return this.element.querySelectorAll("input");
  }

  #draw() {
    const { form, sentence, code = "", standing = "" } = this.#meta;
    const { policies = [], policy = "", numbers = {} } = form ?? {};
    const names = policies.map((each) => /** @type {const} */ ([each, each]));
    const fields = Object.entries(HINTS).map(([name, hint]) => {
      const wrong = this.#wrong[name];
      return html`<label ?hidden=${numbers[name] == null}>${name}<input name=${name} type="number" step="any" title=${hint}
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
    const found = name in HINTS;
    if (found) this.#wrong = { ...this.#wrong, [name]: message.replace(/^\w+: /, "") };
    if (found) this.#draw();
    return found && !this.element.hidden;
  }

  /** The whole setting in the form. @returns {Record<string, string>} */
  #setting() {
    const told = [...this.#inputs].filter(({ value, parentElement }) => value !== "" && !parentElement?.hidden);
    return { policy: this.element.querySelector("select")?.value ?? "", ...Object.fromEntries(told.map(({ name, value }) => [name, value])) };
  }

  /** @param {Record<string, string>} setting the policy's defaults fill the rest */
  #choose(setting) {
    const { view } = this.charts;
    const prefix = this.#meta.form?.prefix ?? "";
    const others = Object.entries(view.choices).filter(([name]) => !name.startsWith(prefix));
    const ours = Object.entries(setting).map(([name, value]) => [prefix + name, value]);
    this.onView({ ...view, choices: Object.fromEntries([...others, ...ours]) });
  }

  async #advise() {
    this.#tell("Trying settings. This takes a few seconds for a long run.", true);
    try {
      const stream = this.charts.view.stream;
      const query = stream === null ? "" : `?stream=${encodeURIComponent(stream)}`;
      const { recommended } = /** @type {Simulated} */ (await get(`/runs/${encodeURIComponent(this.run)}/simulate${query}`));
      const { name, ...numbers } = recommended.policy;
      const set = Object.entries(numbers).flatMap(([key, value]) => (value === null ? [] : [[key, String(value)]]));
      this.#tell(recommended.code ? "" : recommended.words);
      this.#choose({ policy: name, ...Object.fromEntries(set) });
    } catch (error) {
      this.#tell(error instanceof Error ? error.message : String(error));
    }
  }

  /** @param {string} words @param {boolean} [advising] whether the search goes on */
  #tell(words, advising = false) {
    this.#advice = words;
    this.#advising = advising;
    this.#draw();
  }
}

/** @type {{loss: keyof ReturnType<typeof lostAt>, words: string, role: string}[]} from top to bottom */
const LOSSES = [
  { loss: "overflow", words: "Overflow", role: "skip" },
  { loss: "subnormal", words: "Subnormal", role: "subnormal" },
  { loss: "below", words: "Below range", role: "below-grid" },
];

/** The shares of all elements that a format loses at the loss scale 2 ** level.
 * @param {Omit<FormatRange, "format" | "low" | "high">} window @param {number} level */
export function lostAt({ overflow, normal, smallest, first, counts, elements }, level) {
  const share = (/** @type {number} */ from, /** @type {number} */ to) =>
    counts.reduce((sum, count, row) => (from <= first + row + level && first + row + level < to ? sum + count : sum), 0) / elements;
  return { overflow: share(overflow, Infinity), subnormal: share(smallest, normal), below: share(-Infinity, smallest) };
}

export class FormatWindow {
  #slider = new Slider("Loss scale to preview", () => this.#preview(true));
  #at = h("dt");
  #lost = h("dd");
  #shares = LOSSES.map((each) => ({ ...each, share: h("dd") }));
  #reset = h("button", { type: "button", onclick: () => this.#preview(false) }, "Show recorded scale");
  #overlay = h("div", { class: "window", hidden: true }, h("div", {}, ...LOSSES.map(({ words }) => h("i", { "data-words": words }))));
  /** @type {FormatRange | null} */
  #window = null;
  /** @type {Choosable} the slider at the newest recorded scale */
  #recorded = { low: 0, high: 0, value: 0 };

  /** @param {Charts} charts must have the chart "exponents" already */
  constructor(charts) {
    const panel = charts.panelOf("exponents");
    panel?.overlay(this.#overlay);
    if (panel) panel.onDrawn = (meta, layout) => this.#show(meta, layout);
    const shares = this.#shares.map(({ words, role, share }) => h("div", {}, h("dt", {}, swatch(role), words), share));
    this.element = h(
      "section",
      { class: "part", "aria-label": "Elements lost at another loss scale", hidden: true },
      this.#slider.element,
      h("div", { class: "shares" }, h("dl", {}, h("div", {}, this.#at, this.#lost), ...shares), this.#reset),
      ...["skips", "scalars"].map((name) => captionOf(charts, name)),
    );
  }

  /** @param {Meta} meta @param {object} layout */
  #show({ slider, window }, layout) {
    this.element.hidden = !window;
    if (!slider || !window) return;
    this.#window = window;
    this.#recorded = slider;
    const { overflow, normal, smallest, low, high } = window;
    const { height, margin, yaxis } = /** @type {{height: number, margin: {t: number, b: number}, yaxis: {range: [number, number]}}} */ (layout);
    const [bottom, top] = yaxis.range;
    const row = (height - margin.t - margin.b) / (top - bottom);
    this.#overlay.style.top = `${margin.t + (top - high) * row}px`;
    this.#overlay.style.bottom = `${margin.b + (low - bottom) * row}px`;
    for (const [name, value] of Object.entries({ overflow, normal, smallest, low, rows: high - low })) this.#overlay.style.setProperty(`--${name}`, String(value));
    this.#slider.show(this.#overlay.hidden ? slider : { ...slider, value: this.#slider.value });
    this.#count();
  }

  /** @param {boolean} tried false shows the format's range at the recorded scales */
  #preview(tried) {
    this.#overlay.hidden = !tried;
    if (!tried) this.#slider.show(this.#recorded);
    this.#count();
    // The button is disabled now, and must not keep the focus.
    if (!tried) this.#slider.element.control?.focus();
  }

  #count() {
    if (!this.#window) return;
    const level = this.#slider.value;
    const lost = lostAt(this.#window, level);
    const total = percent(lost.overflow + lost.subnormal + lost.below);
    this.#overlay.style.setProperty("--level", String(level));
    this.#reset.disabled = Boolean(this.#overlay.hidden);
    say(this.#at, `Lost in ${this.#window.format} at ${twoTo(level)}`);
    say(this.#lost, total);
    for (const { loss, share } of this.#shares) say(share, percent(lost[loss]));
    this.#slider.say(`, ${total} lost`);
  }
}

/** The first sentence of a chart's caption. @param {Charts} charts @param {string} name */
function captionOf(charts, name) {
  const words = h("p", { class: "caption" });
  const panel = charts.panelOf(name);
  if (panel) panel.onDrawn = ({ caption = "" }) => say(words, /** @type {string} */ (caption.split(/(?<=\.) /)[0]));
  return words;
}
