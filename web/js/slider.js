// A slider over powers of two, with the power beside it.

import { h, mark, say } from "./dom.js";
import { twoTo } from "./format.js";

export class Slider {
  #range;
  #power = h("output");
  #held = false;

  /** @param {string} label @param {() => void} onMove while it moves @param {() => void} [onChosen] once it stops */
  constructor(label, onMove, onChosen = () => {}) {
    const move = () => {
      this.#held = true;
      this.say();
      onMove();
    };
    const choose = () => {
      this.#held = false;
      onChosen();
    };
    this.#range = h("input", { type: "range", step: 1, "aria-label": label, oninput: move, onchange: choose });
    this.element = h("label", { class: "slider" }, this.#range, this.#power);
  }

  get value() {
    return Number(this.#range.value);
  }

  /** Set the ends, and the value unless the reader is moving it. @param {Choosable} slider */
  show({ low, high, value }) {
    mark(this.#range, "min", String(low));
    mark(this.#range, "max", String(high));
    if (!this.#held) this.#range.value = String(value);
    this.say();
  }

  /** Show the value. A screen reader also reads `more`. */
  say(more = "") {
    const words = twoTo(this.value);
    say(this.#power, words);
    mark(this.#range, "aria-valuetext", words + more);
  }
}
