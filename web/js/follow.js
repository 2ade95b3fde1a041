// Which range charts request while a run grows: the newest updates when following, and nothing new when paused. Pure.

import { count, duration, plural } from "./format.js";

/** The options for how many of the newest updates to follow. */
export const FOLLOWED = [100, 1000, 10_000];

/** @type {(run: {last_step: number | null, last_time: number | null, updates: number}) => End | null} */
export function endOf({ last_step, last_time, updates }) {
  return last_step === null || last_time === null ? null : { step: last_step, time: last_time, updates };
}

/** The view to request, with a range in place of `follow`; null if `end` must be known first.
 * @type {(view: View, end: End | null, pause: Pause | null) => View | null} */
export function asked(view, end, pause) {
  if (view.follow !== null) {
    const last = pause ?? end;
    if (last === null) return null;
    return { ...view, x: "step", start: Math.max(0, last.step + 1 - view.follow), stop: pause ? last.step + 1 : null, follow: null };
  }
  // The logged step at the pause is unknown. While paused, charts do not repeat a request anyway.
  if (pause === null || view.x === "user") return view;
  const bound = (view.x === "time" ? pause.time : pause.step) + 1;
  const past = (view.start ?? 0) < bound && bound < (view.stop ?? Infinity);
  return past ? { ...view, stop: bound } : view;
}

/** @param {Pause} pause @param {End | null} end @param {number} now in ms since the epoch, like `since` */
export function pauseWords(pause, end, now) {
  const more = Math.max(0, (end?.updates ?? 0) - pause.updates);
  return `Paused ${duration((now - pause.since) / 1000)} ago; ${more === 0 ? "no new steps" : plural(more, "new step")} since`;
}

/** @param {number} newest */
export function followWords(newest) {
  return `Following the newest ${count(newest)} steps`;
}
