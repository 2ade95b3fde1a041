// Stretches of x: what a drag or a button asks for, as whole steps or microseconds. Pure.

/** @import { Range, View } from "../types/page.js" */

export const MINUTE_MS = 60_000;

/**
 * The first x and the x after the last that a chart's range shows, whose dates are `zone` minutes east of UTC.
 * @type {(shown: [number | string, number | string], axis: View["x"], zone: number) => Range}
 */
export function fromPlot([low, high], axis, zone) {
  const microseconds = (/** @type {number | string} */ date) => Math.round(1000 * (milliseconds(date) - MINUTE_MS * zone));
  if (axis === "time") return ordered(microseconds(low), microseconds(high) + 1);
  // Updates lie between the user's own steps: those around what was dragged over hold them all.
  if (axis === "user") return ordered(Math.floor(Number(low)), Math.ceil(Number(high)));
  return ordered(Math.ceil(Number(low)), Math.floor(Number(high)) + 1);
}

/**
 * What a chart shows for a stretch of x, in Plotly's terms.
 * @type {(range: Range, axis: View["x"], zone: number) => [number, number]}
 */
export function toPlot({ start, stop }, axis, zone) {
  if (axis === "time") return [start / 1000 + MINUTE_MS * zone, stop / 1000 + MINUTE_MS * zone];
  return [start - 0.5, axis === "user" ? stop + 0.5 : stop - 0.5];
}

/**
 * The stretch scaled by `factor` about its middle, or about the `mark` in it, and moved by `shift` of its length.
 * @type {(range: Range, factor: number, shift: number, mark?: number | null) => Range}
 */
export function moved({ start, stop }, factor, shift, mark = null) {
  const length = stop - start;
  const kept = mark !== null && factor < 1 && start <= mark && mark < stop;
  const middle = kept ? mark : (start + stop) / 2 + shift * length;
  const half = Math.max(1, (length * factor) / 2);
  const first = Math.max(0, Math.round(middle - half));
  return { start: first, stop: Math.max(first + 2, Math.round(middle + half)) };
}

/** A stretch of `length` with `middle` in it. @param {number} middle @param {number} length @returns {Range} */
export function around(middle, length) {
  const start = Math.max(0, middle - Math.floor(length / 2));
  return { start, stop: start + length };
}

/** Steps shown about one that is gone to. */
const ABOUT = 50;

/** A view about a step of the run. @param {View} view @param {number} step @returns {View} */
export function about(view, step) {
  return { ...view, x: "step", follow: null, at: step, ...around(step, ABOUT) };
}

/** @param {number} start @param {number} stop */
function ordered(start, stop) {
  const first = Math.max(0, start);
  return { start: first, stop: Math.max(first + 1, stop) };
}

/** @param {number | string} date */
function milliseconds(date) {
  return typeof date === "number" ? date : Date.parse(`${date.replace(" ", "T")}Z`);
}
