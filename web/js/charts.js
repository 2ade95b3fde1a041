// The charts of a run, all but the last on one x axis: what one shows, all show. Fetches what is on the screen, no more.

import { AXES, figureQuery } from "./address.js";
import { Refused } from "./api.js";
import { h, mark, say } from "./dom.js";
import { count, steps } from "./format.js";
import { Panel } from "./panel.js";
import { fromPlot, moved, toPlot } from "./range.js";

/** @import { Point, Range, View } from "../types/page.js" */
/** @import { PlotRange } from "./plot.js" */

/** The charts, from top to bottom, each with the names of what the reader can choose of it. @type {[string, string[]][]} */
const CHARTS = [
  ["scale", []],
  ["skips", []],
  ["underflow", []],
  ["exponents", []],
  ["parameters", ["statistic"]],
  ["whatif", ["format", "parameter", "whatif_scale"]],
  ["scalars", ["name"]],
  ["activations", []],
];

const MOVES = /** @type {const} */ ([
  ["Earlier", "←", 1, -0.5],
  ["Later", "→", 1, 0.5],
  ["Zoom in", "+", 0.5, 0],
  ["Zoom out", "−", 2, 0],
]);

// On a phone a drag scrolls the page.
/** @type {Record<View["x"], string>} */
const NAMED = { step: "step", time: "time", user: "your step" };

/** @type {Record<View["x"], string>} */
const ALONG = {
  step: "Updates of the scaler, counted from 0",
  time: "When they happened, in UTC",
  user: "The step that you gave to ampmon.log",
};

const HINT = matchMedia("(pointer: coarse), (max-width: 480px)").matches ? "" : "Drag across a chart to zoom, double-click for the whole run";

export class Charts {
  /** @type {Panel[]} */
  #panels = [];
  #held = false;
  #own = false;
  #generation = 0;
  #where = h("p", { class: "where" });
  #whole = h("button", { type: "button", onclick: () => this.#look(null) }, "Whole run");
  /** @type {HTMLButtonElement[]} */
  #axes;

  /**
   * @param {string} run
   * @param {View} view
   * @param {{onView: (view: View) => void, onClick: (chart: string, point: Point) => void, onWanted: () => void, onTrouble: () => void}} listener
   */
  constructor(run, view, listener) {
    this.run = run;
    this.view = view;
    this.listener = listener;
    this.#axes = AXES.map((x) =>
      h("button", { type: "button", "data-x": x, title: ALONG[x], onclick: () => this.#turn(x) }, NAMED[x]),
    );
    this.element = h("div", { class: "charts" }, this.#toolbar(), ...CHARTS.map(([name, choices]) => this.panel(name, choices).element));
    this.element.addEventListener("pointerdown", this.#hold);
    window.addEventListener("pointerup", this.#release);
    window.addEventListener("pointercancel", this.#release);
    this.#describe();
  }

  /**
   * Another chart, to be put on the page by whoever asks: it zooms, is refreshed and is closed as those here are.
   * @param {string} name
   * @param {readonly string[]} [choices] what the reader can choose of it, by the names in its address
   */
  panel(name, choices = []) {
    const panel = new Panel(name, choices, {
      onZoom: (range) => this.#zoom(range),
      onReset: () => this.#look(null),
      onClick: (point) => this.listener.onClick(name, point),
      onChoice: (choice, value) => this.#choose(choice, value),
      onWanted: () => this.listener.onWanted(),
    });
    this.#panels.push(panel);
    return panel;
  }

  /**
   * A chart by its name.
   * @param {string} name
   */
  named(name) {
    return this.#panels.find((panel) => panel.name === name);
  }

  /**
   * Puts a part of the page below a chart.
   * @param {string} name the chart's
   * @param {HTMLElement} element
   */
  below(name, element) {
    this.named(name)?.element.after(element);
  }

  /** Fetches and draws the charts on the screen. Never rejects. */
  async refresh() {
    const generation = this.#generation;
    const wanted = () => generation === this.#generation && !this.#held;
    const visible = this.#panels.filter((panel) => panel.visible);
    await Promise.all(visible.map((panel) => this.#refresh(panel, wanted)));
    this.#describe();
  }

  /** Draws all charts again, in the colours of the theme. */
  async recolour() {
    await Promise.all(this.#panels.map((panel) => panel.redraw()));
  }

  /**
   * Shows another stretch of the run.
   * @param {View} view
   */
  look(view) {
    this.view = view;
    this.#describe();
    this.#again();
  }

  /**
   * Says whether the run has steps of the user's own, to be had as an axis.
   * @param {boolean} own
   */
  offerOwnSteps(own) {
    this.#own = own;
    this.#describe();
  }

  /** Lets what is under way lapse, and asks anew. */
  #again() {
    this.#generation += 1;
    this.listener.onWanted();
  }

  close() {
    window.removeEventListener("pointerup", this.#release);
    window.removeEventListener("pointercancel", this.#release);
    for (const panel of this.#panels) panel.close();
  }

  /**
   * @param {Panel} panel
   * @param {() => boolean} wanted
   */
  async #refresh(panel, wanted) {
    const query = figureQuery(this.view, panel.choices);
    const address = `/runs/${encodeURIComponent(this.run)}/figures/${panel.name}?${query}&width=${panel.width}`;
    try {
      await panel.refresh(address, wanted);
    } catch (error) {
      if (error instanceof Refused) panel.fail(`The server could not draw this: ${error.message}`);
      else this.listener.onTrouble();
    }
  }

  /** The stretch that is shown, as whole steps or microseconds. @returns {Range | null} */
  get #shown() {
    const { start, stop, x } = this.view;
    if (start !== null && stop !== null) return { start, stop };
    const range = this.#panels.map((panel) => panel.range).find((range) => range !== null);
    return range ? fromPlot(range, x) : null;
  }

  /** @param {PlotRange} range */
  #zoom(range) {
    this.#look(fromPlot(range, this.view.x));
  }

  /** @param {Range | null} range null for the whole run */
  #look(range) {
    const { start, stop } = range ?? { start: null, stop: null };
    if (range) for (const panel of this.#panels) void panel.show(toPlot(range, this.view.x));
    this.listener.onView({ ...this.view, start, stop });
  }

  /**
   * @param {string} name
   * @param {string} value
   */
  #choose(name, value) {
    const { [name]: _, ...others } = this.view.choices;
    this.listener.onView({ ...this.view, choices: value ? { ...others, [name]: value } : others });
  }

  /** @param {View["x"]} x */
  #turn(x) {
    if (x !== this.view.x) this.listener.onView({ ...this.view, x, start: null, stop: null });
  }

  #toolbar() {
    const moves = MOVES.map(([name, sign, factor, shift]) =>
      h("button", { type: "button", title: name, "aria-label": name, onclick: () => this.#move(factor, shift) }, sign),
    );
    return h(
      "div",
      { class: "toolbar", role: "toolbar", "aria-label": "What the charts show" },
      h("div", { class: "choice", role: "group", "aria-label": "Horizontal axis" }, ...this.#axes),
      h("div", { class: "choice", role: "group", "aria-label": "Zoom" }, ...moves, this.#whole),
      this.#where,
    );
  }

  /**
   * @param {number} factor
   * @param {number} shift
   */
  #move(factor, shift) {
    const shown = this.#shown;
    if (shown) this.#look(moved(shown, factor, shift));
  }

  #describe() {
    const { start, stop, x } = this.view;
    const whole = start === null && stop === null;
    for (const button of this.#axes) {
      mark(button, "aria-pressed", String(button.dataset.x === x));
      button.hidden = button.dataset.x === "user" && x !== "user" && !this.#own;
    }
    mark(this.#whole, "aria-pressed", String(whole));
    say(this.#where, whole ? HINT : x === "time" ? "Showing a stretch of time" : stepsWords(start, stop, x));
  }

  // A chart that were redrawn under a drag would lose it.
  #hold = () => {
    this.#held = true;
  };

  #release = () => {
    if (!this.#held) return;
    this.#held = false;
    this.listener.onWanted();
  };
}

/**
 * @param {number | null} start
 * @param {number | null} stop
 * @param {View["x"]} axis
 */
function stepsWords(start, stop, axis) {
  const words = stop === null ? `from step ${count(start ?? 0)} on` : steps(start ?? 0, stop - 1);
  return `Showing ${words}${axis === "user" ? " of your own" : ""}`;
}

