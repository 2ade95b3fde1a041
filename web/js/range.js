// Ranges of x and of rows: what a drag, a button, a growing run or a screen asks for. Pure, but for the search for skips.

import { queryOf } from "./address.js";
import { duration, plural } from "./format.js";
import { dateOf } from "./saving.js";
import { get } from "./server.js";

/** The options for how many of the newest updates to follow. */
export const FOLLOWED = [100, 1000, 10_000];
/** Extra rows above and below the screen, for scrolling. */
const SPARE = 8;
/** Updates (or microseconds) shown around a step, if the whole run was shown before. */
const ABOUT = { step: 50, time: 10_000_000 };

/** The range (stop excluded) that a plot shows. Its dates are `zone` minutes east of UTC.
 * @type {(shown: PlotRange, axis: View["x"], zone?: number) => Span} */
export function fromPlot([low, high], axis, zone = 0) {
  if (axis === "time") return ordered(microseconds(low, zone), microseconds(high, zone) + 1);
  // Updates are between logged steps, so widen the range to the steps around the drag.
  if (axis === "user") return ordered(Math.floor(Number(low)), Math.ceil(Number(high)));
  return ordered(Math.ceil(Number(low)), Math.floor(Number(high)) + 1);
}

/** A range in Plotly's units: dates in the zone, without one the time since a start. @type {(range: Span, axis: View["x"], zone?: number) => PlotRange} */
export function toPlot({ start, stop }, axis, zone) {
  if (axis === "time") return zone === undefined ? [start / 1000, stop / 1000] : [dateOf(start / 1000, zone), dateOf(stop / 1000, zone)];
  return [start - 0.5, axis === "user" ? stop + 0.5 : stop - 0.5];
}

/** Scale a range by `factor`, and move it by `shift` of its length. Zooming in centres on a `mark` in the range.
 * @type {(range: Span, factor: number, shift: number, mark?: number | null) => Span} */
export function moved({ start, stop }, factor, shift, mark = null) {
  const length = stop - start;
  const kept = mark !== null && factor < 1 && start <= mark && mark < stop;
  const middle = kept ? mark : (start + stop) / 2 + shift * length;
  const half = Math.max(1, (length * factor) / 2);
  const first = Math.max(0, Math.round(middle - half));
  return { start: first, stop: Math.max(first + 2, Math.round(middle + half)) };
}

/** The part of a range that is in the whole run; null if it is all of it. An end of null is not known.
 * @type {(range: Span, whole: {start: number | null, stop: number | null}) => Span | null} */
export function within({ start, stop }, whole) {
  const [low, high] = [whole.start ?? 0, whole.stop ?? Infinity];
  if (start <= low && stop >= high) return null;
  const part = { start: Math.max(start, low), stop: Math.min(stop, high) };
  return part.start < part.stop ? part : { start, stop };
}

/** A range of `length` around `middle`. @param {number} middle @param {number} length @returns {Span} */
export function around(middle, length) {
  const start = Math.max(0, middle - Math.floor(length / 2));
  return { start, stop: start + length };
}

/** A view around a step. @param {View} view @param {number} step @returns {View} */
export const about = (view, step) => ({ ...view, x: "step", follow: null, at: step, ...around(step, ABOUT.step) });

/** @param {number} start @param {number} stop */
function ordered(start, stop) {
  const first = Math.max(0, start);
  return { start: first, stop: Math.max(first + 1, stop) };
}

/** @param {number | string} date in ms, or as Plotly has it in the zone, without its time at midnight @param {number} zone */
const microseconds = (date, zone) => Math.round(1000 * (typeof date === "number" ? date : Date.parse(date.replace(/ (.*)/, "T$1Z")) - 60_000 * zone));

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

/** The first row to draw, and the one after the last. In pixels: `top` is the first row's place on the screen, `height`
 * the screen's, and `row` a row's.
 * @type {(screen: {top: number, height: number, row: number, total: number}) => [first: number, after: number]} */
export function rowsOn({ top, height, row, total }) {
  const first = Math.floor(-top / row) - SPARE;
  const after = Math.ceil((height - top) / row) + SPARE;
  return [Math.min(Math.max(0, first), total), Math.min(Math.max(0, after), total)];
}

/** The first page of `size` rows that holds any of these rows, and the page after the last.
 * @type {(first: number, after: number, size: number) => [first: number, after: number]} */
export function pagesOf(first, after, size) {
  const page = Math.floor(first / size);
  return [page, Math.max(page + 1, Math.ceil(after / size))];
}

/** Make a search for the next or previous skip of a run. It gives a view around the skip, or null if there is none, and
 * rejects if the server does not answer.
 * @param {string} path the run's @returns {(view: View, side: "after" | "before") => Promise<View | null>} */
export function skipFinder(path) {
  /** The skip found last: its step, and its place along x. */
  let last = { step: -1, at: -1 };
  return async (view, side) => {
    // Search from the mark, else from an end of the range.
    const from = view.at ?? (side === "before" ? view.stop : view.start ? view.start - 1 : null);
    const known = view.x === "user" ? {} : { [view.x]: from };
    const place = view.at === last.at ? { step: last.step } : known;
    const query = queryOf({ side, ...place, stream: view.stream });
    const { step, time } = /** @type {{step: number | null, time: number | null}} */ (await get(`${path}/skips/nearest?${query}`));
    if (step === null || time === null) return null;
    const x = view.x === "time" ? "time" : "step";
    const length = view.x === x && view.start !== null && view.stop !== null ? view.stop - view.start : ABOUT[x];
    const at = x === "time" ? time : step;
    last = { step, at };
    return { ...view, x, follow: null, at, ...around(at, length) };
  };
}
