// Goes from skip to skip: finds the next one, and the stretch of the run about it.

import { get } from "./api.js";
import { around } from "./range.js";

/** @import { View } from "../types/page.js" */

/** Updates shown about a skip, or microseconds, where the whole run was shown before. */
const ABOUT = { step: 50, time: 10_000_000 };

export class Skips {
  /** The skip that was gone to last, by its step. @type {number | null} */
  #last = null;
  /** @type {View | null} the view that it was gone to by */
  #by = null;

  /** @param {string} run */
  constructor(run) {
    this.path = `/runs/${encodeURIComponent(run)}/skips/nearest`;
  }

  /**
   * A view about the next skip, or the one before; null where there is none. Rejects where the server does not answer.
   * @param {View} view
   * @param {"after" | "before"} side
   * @returns {Promise<View | null>}
   */
  async find(view, side) {
    const from = this.#from(view, side);
    const query = new URLSearchParams({ side, ...(from === null ? {} : { step: String(from) }), ...(view.stream === null ? {} : { stream: view.stream }) });
    const { step, time } = /** @type {{step: number | null, time: number | null}} */ (await get(`${this.path}?${query}`));
    if (step === null || time === null) return null;
    const x = view.x === "time" ? "time" : "step";
    const length = view.x === x && view.start !== null && view.stop !== null ? view.stop - view.start : ABOUT[x];
    this.#last = step;
    this.#by = { ...view, x, follow: null, ...around(x === "time" ? time : step, length) };
    return this.#by;
  }

  /**
   * The step to look from: of the skip that is shown, else the end of what is shown.
   * @param {View} view
   * @param {"after" | "before"} side
   */
  #from({ x, start, stop }, side) {
    if (this.#by !== null && x === this.#by.x && start === this.#by.start && stop === this.#by.stop) return this.#last;
    if (x !== "step") return null;
    return side === "before" ? stop : start === null || start === 0 ? null : start - 1;
  }
}
