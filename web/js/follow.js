// Which stretch the charts ask for while a run grows: the newest updates where they are followed, none after a pause. Pure.

import { count, duration, plural } from "./format.js";

/** @import { View } from "../types/page.js" */

/** How many of the newest updates can be followed. */
export const FOLLOWED = [100, 1000, 10_000];

/**
 * The end of a run: the step and the time of its newest update, and how many updates it has.
 * @typedef {{step: number, time: number, updates: number}} End
 * @typedef {End & {since: number}} Pause
 */

/** @type {(run: {last_step: number | null, last_time: number | null, updates: number}) => End | null} */
export function endOf({ last_step, last_time, updates }) {
  return last_step === null || last_time === null ? null : { step: last_step, time: last_time, updates };
}

/**
 * The view that figures are asked for, with the ends of the data that is wanted and no `follow`; null where `end` must be
 * known first.
 * @type {(view: View, end: End | null, pause: Pause | null) => View | null}
 */
export function asked(view, end, pause) {
  if (view.follow !== null) {
    const last = pause ?? end;
    if (last === null) return null;
    return { ...view, x: "step", start: Math.max(0, last.step + 1 - view.follow), stop: pause ? last.step + 1 : null, follow: null };
  }
  // The user's own step at the pause is not known: there a chart is not asked for twice.
  if (pause === null || view.x === "user") return view;
  const bound = (view.x === "time" ? pause.time : pause.step) + 1;
  const past = (view.start ?? 0) < bound && bound < (view.stop ?? Infinity);
  return past ? { ...view, stop: bound } : view;
}

/** @param {Pause} pause @param {End | null} end @param {number} now ms since the epoch, as `since` is */
export function pauseWords(pause, end, now) {
  const more = Math.max(0, (end?.updates ?? 0) - pause.updates);
  return `Paused ${duration((now - pause.since) / 1000)} ago; ${more === 0 ? "no step" : plural(more, "step")} since`;
}

/** @param {number} newest */
export function followWords(newest) {
  return `Following the newest ${count(newest)} steps`;
}
