// The bar above the charts: x axis, zoom, following and pausing, and the range in words. Independent of the charts.

import { AXES } from "./address.js";
import { h, html, mark, renderForm, select } from "./dom.js";
import { count, steps } from "./format.js";
import { FOLLOWED, followWords } from "./range.js";

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
  user: "The step you passed to ampmon.log",
};

// On a phone a drag scrolls the page.
const coarse = matchMedia("(pointer: coarse), (max-width: 480px)");
const HINT = "Drag across a chart to zoom, double-click for the whole run";

export class Toolbar {
  element = h("div", { class: "toolbar", role: "toolbar", "aria-label": "Chart controls" });
  /** How many of the newest updates are followed, or would be. */
  newest = FOLLOWED[0] ?? 0;

  /** @param {{onCommand: (command: Command) => void, onAxis: (x: View["x"]) => void, onFollow: (newest: number) => void}} listener */
  constructor(listener) {
    this.listener = listener;
  }

  /** `own` is whether the run has logged steps, `live` whether it goes on, and `follows` whether it can be followed.
   * `paused` says in words since when the charts are paused.
   * @param {View} view @param {{own: boolean, live: boolean, follows: boolean, paused: string | null}} run */
  update(view, { own, live, follows, paused }) {
    const { onCommand, onAxis, onFollow } = this.listener;
    this.newest = view.follow ?? this.newest;
    const newest = [...new Set([...FOLLOWED, this.newest])].map((each) => /** @type {const} */ ([String(each), count(each)]));
    const label = "Number of newest steps to follow";
    const numbers = select({ label, options: newest, chosen: String(this.newest), onChoose: (value) => onFollow(Number(value)) });
    mark(this.element, "data-paused", paused === null ? null : "");
    const axes = AXES.map((x) => {
      const hidden = x === "user" && view.x !== "user" && !own;
      return html`<button type="button" data-x=${x} title=${ALONG[x]} aria-pressed=${x === view.x} ?hidden=${hidden} @click=${() => onAxis(x)}>${NAMED[x]}</button>`;
    });
    const moves = MOVES.map(
      ([command, name, sign]) => html`<button type="button" title=${name} aria-label=${name} @click=${() => onCommand(command)}>${sign}</button>`,
    );
    renderForm(
      html`
        <div class="controls">
          <div class="choice" role="group" aria-label="Horizontal axis">${axes}</div>
          <div class="choice" role="group" aria-label="Zoom">
            ${moves}
            <button type="button" title="The whole run (0)" aria-pressed=${isWhole(view)} @click=${() => onCommand("whole")}>Whole run</button>
          </div>
          <div class="choice" role="group" aria-label="Live" ?hidden=${!follows}>
            <button type="button" title="Follow the newest steps (f)" aria-pressed=${view.follow !== null} @click=${() => onCommand("follow")}>Follow</button>
            ${numbers}
            <button type="button" title="Pause live updates (p)" aria-pressed=${paused !== null} ?hidden=${!live && paused === null} @click=${() => onCommand("pause")}>
              ${paused === null ? "Pause" : "Resume"}
            </button>
          </div>
        </div>
        <p class="where">${paused ?? (!isWhole(view) ? shownWords(view) : coarse.matches ? "" : HINT)}</p>
      `,
      this.element,
    );
  }
}

/** @param {View} view */
export function isWhole({ start, stop, follow }) {
  return start === null && stop === null && follow === null;
}

/** @param {View} view */
function shownWords({ start, stop, x, follow }) {
  if (follow !== null) return followWords(follow);
  if (x === "time") return "Showing a time range";
  const words = stop === null ? `from step ${count(start ?? 0)} on` : steps(start ?? 0, stop - 1);
  return `Showing ${x === "user" ? "logged " : ""}${words}`;
}
