// The bar above the charts: x axis, zoom, following and pausing, and the range in words.

import { AXES } from "./address.js";
import { html, select } from "./dom.js";
import { count, plural, steps } from "./format.js";
import { FOLLOWED } from "./range.js";

/** @type {[Command, string, string][]} */
const MOVES = [
  ["left", "Earlier (←)", "←"],
  ["right", "Later (→)", "→"],
  ["in", "Zoom in (+)", "+"],
  ["out", "Zoom out (−)", "−"],
];

/** @type {Record<View["x"], [word: string, title: string]>} */
const ALONG = {
  step: ["step", "Optimizer steps, counted from 0"],
  time: ["time", "Wall-clock time"],
  user: ["logged step", "The step you passed to ampmon.log"],
};

// On a phone a drag scrolls the page.
const coarse = matchMedia("(pointer: coarse), (max-width: 480px)");
const HINT = "Drag across a chart to zoom, double-click for the whole run";

/** The bar's content. `own` is whether the run has logged steps, `live` whether it goes on, and `follows` whether it can
 * be followed. `newest` is how many of its newest updates are followed, or would be. `paused` says in words since when
 * the charts are paused.
 * @param {Charts} charts @param {{own: boolean, live: boolean, follows: boolean, newest: number, paused: string | null}} run */
export function toolbar(charts, { own, live, follows, newest, paused }) {
  const { view } = charts;
  const numbers = [...new Set([...FOLLOWED, newest])].map((each) => /** @type {const} */ ([String(each), count(each)]));
  const onChoose = (/** @type {string} */ value) => charts.follow(Number(value));
  const act = (/** @type {Command} */ command) => () => charts.act(command);
  const axes = AXES.map((x) => {
    const hidden = x === "user" && view.x !== "user" && !own;
    const [word, title] = ALONG[x];
    return html`<button type="button" data-x=${x} title=${title} aria-pressed=${x === view.x} ?hidden=${hidden} @click=${() => charts.setAxis(x)}>${word}</button>`;
  });
  return html`
    <div class="controls">
      <div class="choice" role="group" aria-label="Horizontal axis">${axes}</div>
      <div class="choice" role="group" aria-label="Zoom">
        ${MOVES.map(([command, name, sign]) => html`<button type="button" title=${name} aria-label=${name} @click=${act(command)}>${sign}</button>`)}
        <button type="button" title="The whole run (0)" aria-pressed=${isWhole(view)} @click=${act("whole")}>Whole run</button>
      </div>
      <div class="choice" role="group" aria-label="Live" ?hidden=${!follows}>
        <button type="button" title="Follow the newest steps (f)" aria-pressed=${view.follow !== null} @click=${act("follow")}>Follow</button>
        ${select({ label: "Number of newest steps to follow", options: numbers, chosen: String(newest), onChoose })}
        <button type="button" title="Pause live updates (p)" aria-pressed=${paused !== null} ?hidden=${!live && paused === null} @click=${act("pause")}>
          ${paused === null ? "Pause" : "Resume"}
        </button>
      </div>
    </div>
    <p class="where">${paused ?? (!isWhole(view) ? shownWords(view) : coarse.matches ? "" : HINT)}</p>
  `;
}

/** @param {View} view */
export const isWhole = ({ start, stop, follow }) => start === null && stop === null && follow === null;

/** @param {View} view */
function shownWords({ start, stop, x, follow }) {
  if (follow !== null) return `Following the newest ${plural(follow, "step")}`;
  if (x === "time") return "Showing a time range";
  const words = stop === null ? `steps from ${count(start ?? 0)} on` : steps(start ?? 0, stop - 1);
  return `Showing ${x === "user" ? "logged " : ""}${words}`;
}
