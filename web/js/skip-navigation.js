// Finds the next or previous skip, and the range around it.

import { get } from "./api.js";
import { around } from "./range.js";

/** Updates (or microseconds) shown around a skip, if the whole run was shown before. */
const ABOUT = { step: 50, time: 10_000_000 };

export class SkipFinder {
  /** The skip found last: its step, and its place along x. */
  #last = { step: -1, at: -1 };

  /** @param {string} run its API path */
  constructor(run) {
    this.path = `${run}/skips/nearest`;
  }

  /** Return a view around the next or previous skip; null if there is none. Rejects if the server does not answer.
   * @type {(view: View, side: "after" | "before") => Promise<View | null>} */
  async find(view, side) {
    const query = new URLSearchParams({ side, ...this.#from(view, side), ...(view.stream === null ? {} : { stream: view.stream }) });
    const { step, time } = /** @type {{step: number | null, time: number | null}} */ (await get(`${this.path}?${query}`));
    if (step === null || time === null) return null;
    const x = view.x === "time" ? "time" : "step";
    const length = view.x === x && view.start !== null && view.stop !== null ? view.stop - view.start : ABOUT[x];
    const at = x === "time" ? time : step;
    this.#last = { step, at };
    return { ...view, x, follow: null, at, ...around(at, length) };
  }

  /** The step or time to search from: the mark, else an end of the range.
   * @type {(view: View, side: "after" | "before") => Record<string, string>} */
  #from({ x, start, stop, at }, side) {
    if (at === this.#last.at) return { step: String(this.#last.step) };
    const from = at ?? (side === "before" ? stop : start ? start - 1 : null);
    return x === "user" || from === null ? {} : { [x]: String(from) };
  }
}
