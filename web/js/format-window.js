// Below the heatmap of exponents: a slider moves a number format's range over it and shows which shares it would lose.

import { h, say } from "./dom.js";
import { percent, twoTo } from "./format.js";
import { swatch } from "./readout.js";
import { Slider } from "./slider.js";

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
