// The bar above the charts: what is along x, zoom, following and pausing, and in words what is shown. Knows no chart.

import { AXES } from "./address.js";
import { h, mark, offer, say } from "./dom.js";
import { FOLLOWED, followWords } from "./follow.js";
import { count, steps } from "./format.js";

/** @import { View } from "../types/page.js" */
/** @import { Command } from "./keyboard.js" */

/** @type {[Command, string, string][]} */
const MOVES = [
  ["left", "Earlier (←)", "←"],
  ["right", "Later (→)", "→"],
  ["in", "Zoom in (+)", "+"],
  ["out", "Zoom out (−)", "−"],
];

/** @type {Record<View["x"], string>} */
const NAMED = { step: "step", time: "time", user: "logged step" };

/** @type {Record<View["x"], string>} */
const ALONG = {
  step: "Optimizer steps, counted from 0",
  time: "Wall-clock time",
  user: "The step that you gave to ampmon.log",
};

// On a phone a drag scrolls the page.
const HINT = matchMedia("(pointer: coarse), (max-width: 480px)").matches ? "" : "Drag across a chart to zoom, double-click for the whole run";

export class Toolbar {
  #axes;
  #whole;
  #follow;
  #newest;
  #pause;
  #newer;
  #where = h("p", { class: "where" });

  /** @param {{onCommand: (command: Command) => void, onAxis: (x: View["x"]) => void, onFollow: (newest: number) => void}} listener */
  constructor({ onCommand, onAxis, onFollow }) {
    this.#axes = AXES.map((x) => h("button", { type: "button", "data-x": x, title: ALONG[x], onclick: () => onAxis(x) }, NAMED[x]));
    const moves = MOVES.map(([command, name, sign]) =>
      h("button", { type: "button", title: name, "aria-label": name, onclick: () => onCommand(command) }, sign),
    );
    this.#whole = button("Whole run", "The whole run (0)", () => onCommand("whole"));
    this.#follow = button("Follow", "Follow the newest steps (f)", () => onCommand("follow"));
    this.#newest = h("select", { "aria-label": "How many of the newest steps to follow", onchange: () => onFollow(this.newest) });
    this.#offer(FOLLOWED[0] ?? 0);
    this.#pause = button("Pause", "Pause live updates (p)", () => onCommand("pause"));
    this.#newer = h("div", { class: "choice", role: "group", "aria-label": "Live" }, this.#follow, this.#newest, this.#pause);
    this.element = h(
      "div",
      { class: "toolbar", role: "toolbar", "aria-label": "What the charts show" },
      h(
        "div",
        { class: "controls" },
        h("div", { class: "choice", role: "group", "aria-label": "Horizontal axis" }, ...this.#axes),
        h("div", { class: "choice", role: "group", "aria-label": "Zoom" }, ...moves, this.#whole),
        this.#newer,
      ),
      this.#where,
    );
  }

  /** How many of the newest updates are followed, where they are. */
  get newest() {
    return Number(this.#newest.value);
  }

  /**
   * @param {View} view
   * @param {{own: boolean, live: boolean, follows: boolean, paused: string | null}} run whether it has steps of the user's own, goes on and can be followed, and
   *   since when its charts hold still, in words
   */
  update(view, { own, live, follows, paused }) {
    for (const axis of this.#axes) {
      mark(axis, "aria-pressed", String(axis.dataset.x === view.x));
      axis.hidden = axis.dataset.x === "user" && view.x !== "user" && !own;
    }
    mark(this.#whole, "aria-pressed", String(isWhole(view)));
    mark(this.#follow, "aria-pressed", String(view.follow !== null));
    if (view.follow !== null) this.#offer(view.follow);
    mark(this.#pause, "aria-pressed", String(paused !== null));
    this.#newer.hidden = !follows;
    this.#pause.hidden = !live && paused === null;
    say(this.#pause, paused === null ? "Pause" : "Resume");
    mark(this.element, "data-paused", paused === null ? null : "");
    say(this.#where, paused ?? (isWhole(view) ? HINT : shownWords(view)));
  }

  /** @param {number} newest which may be of the address alone */
  #offer(newest) {
    const offered = [...new Set([...FOLLOWED, newest])];
    offer(this.#newest, offered.map((each) => [String(each), count(each)]), String(newest));
  }
}

/**
 * @param {string} words
 * @param {string} title
 * @param {() => void} onclick
 */
function button(words, title, onclick) {
  return h("button", { type: "button", title, onclick }, words);
}

/** @param {View} view */
function isWhole({ start, stop, follow }) {
  return start === null && stop === null && follow === null;
}

/** @param {View} view */
function shownWords({ start, stop, x, follow }) {
  if (follow !== null) return followWords(follow);
  if (x === "time") return "Showing a time range";
  const words = stop === null ? `from step ${count(start ?? 0)} on` : steps(start ?? 0, stop - 1);
  return `Showing ${x === "user" ? "logged " : ""}${words}`;
}
