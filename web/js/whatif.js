// Below the chart of other scales: a slider for the scale, what would come of it in words, and the code for it.

import { Code } from "./code.js";
import { h, mark, say } from "./dom.js";
import { twoTo } from "./format.js";
import { paced } from "./pace.js";

/** @import { Charts } from "./charts.js" */
/** @import { Meta, View } from "../types/page.js" */

const TRIED_MS = 100;

export class WhatIf {
  #range = h("input", { type: "range", step: 1, "aria-label": "Scale to try", oninput: () => this.#try(), onchange: () => this.#choose() });
  #power = h("output");
  #slider = h("label", { class: "slider" }, this.#range, this.#power);
  #sentence = h("p", { class: "sentence", role: "status" });
  #code = new Code();
  #all = h("button", { type: "button", onclick: () => this.onView({ ...this.charts.view, parameter: null }) }, "Show all parameters");
  #look;
  #held = false;

  /**
   * @param {Charts} charts
   * @param {(view: View) => void} onView
   */
  constructor(charts, onView) {
    this.charts = charts;
    this.onView = onView;
    this.element = h(
      "section",
      { class: "part whatif", "aria-label": "A scale to try", hidden: true },
      this.#slider,
      this.#sentence,
      h("div", { class: "ways" }, this.#code.element, this.#all),
    );
    // A chart waits while something is dragged over it; this drag is what it is to show.
    this.element.addEventListener("pointerdown", (event) => event.stopPropagation());
    this.#look = paced(async () => charts.look(this.#view), TRIED_MS);
    const panel = charts.named("whatif");
    if (panel) panel.onDrawn = (meta) => this.#show(meta);
  }

  close() {
    this.#look.stop();
  }

  /** @param {Meta} meta */
  #show({ slider, sentence, code, standing }) {
    const one = this.charts.view.parameter !== null;
    // Of one parameter there may be nothing to move; the way back to all of them stays.
    this.element.hidden = !slider && !one;
    this.#all.hidden = !one;
    this.#slider.hidden = !slider;
    say(this.#sentence, sentence ?? "");
    this.#code.show(code ?? "", standing ?? "");
    if (!slider) return;
    mark(this.#range, "min", String(slider.low));
    mark(this.#range, "max", String(slider.high));
    if (!this.#held) this.#range.value = String(slider.value);
    this.#say();
  }

  /** While the slider moves the chart follows; the address has only where it stopped. */
  #try() {
    this.#held = true;
    this.#say();
    this.#look();
  }

  #choose() {
    this.#held = false;
    this.onView(this.#view);
  }

  get #view() {
    const { view } = this.charts;
    return { ...view, choices: { ...view.choices, whatif_scale: this.#range.value } };
  }

  #say() {
    const words = twoTo(Number(this.#range.value));
    say(this.#power, words);
    mark(this.#range, "aria-valuetext", words);
  }
}
