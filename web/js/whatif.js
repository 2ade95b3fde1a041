// Below the chart of other scales: a slider for the scale, what would come of it in words, and the code for it.

import { Code } from "./code.js";
import { h, say } from "./dom.js";
import { paced } from "./pace.js";
import { Slider } from "./slider.js";

/** @import { Charts } from "./charts.js" */
/** @import { Meta, View } from "../types/page.js" */

const TRIED_MS = 100;

export class WhatIf {
  #slider;
  #sentence = h("p", { class: "sentence", role: "status" });
  #code = new Code();
  #all = h("button", { type: "button", onclick: () => this.onView({ ...this.charts.view, parameter: null }) }, "Show all parameters");
  #look;

  /**
   * @param {Charts} charts
   * @param {(view: View) => void} onView
   */
  constructor(charts, onView) {
    this.charts = charts;
    this.onView = onView;
    this.#look = paced(async () => charts.look(this.#view), TRIED_MS);
    // While the slider moves the chart follows; the address has only where it stopped.
    this.#slider = new Slider("Scale to try", this.#look, () => onView(this.#view));
    this.element = h(
      "section",
      { class: "part whatif", "aria-label": "A scale to try", hidden: true },
      this.#slider.element,
      this.#sentence,
      h("div", { class: "ways" }, this.#code.element, this.#all),
    );
    // A chart waits while something is dragged over it; this drag is what it is to show.
    this.element.addEventListener("pointerdown", (event) => event.stopPropagation());
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
    this.#slider.element.hidden = !slider;
    say(this.#sentence, sentence ?? "");
    this.#code.show(code ?? "", standing ?? "");
    if (slider) this.#slider.show(slider);
  }

  get #view() {
    const { view } = this.charts;
    return { ...view, choices: { ...view.choices, whatif_scale: String(this.#slider.value) } };
  }
}
