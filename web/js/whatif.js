// Below the what-if chart: a slider for the scale, its outcome in words, and the code for it.

import { codeBlock, copyButton } from "./code.js";
import { h } from "./dom.js";
import { html, nothing, render } from "./lit-html.js";
import { paced } from "./pace.js";
import { Slider } from "./slider.js";

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
