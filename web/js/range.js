// Ranges of x, in whole steps or microseconds: what a drag or a button asks for. Pure.

export const MINUTE_MS = 60_000;

/** The range (stop excluded) that a plot shows. Its dates are `zone` minutes east of UTC.
 * @type {(shown: [number | string, number | string], axis: View["x"], zone: number) => Span} */
export function fromPlot([low, high], axis, zone) {
  const microseconds = (/** @type {number | string} */ date) => Math.round(1000 * (milliseconds(date) - MINUTE_MS * zone));
  if (axis === "time") return ordered(microseconds(low), microseconds(high) + 1);
  // Updates are between logged steps, so widen the range to the steps around the drag.
  if (axis === "user") return ordered(Math.floor(Number(low)), Math.ceil(Number(high)));
  return ordered(Math.ceil(Number(low)), Math.floor(Number(high)) + 1);
}

/** A range in Plotly's units. @type {(range: Span, axis: View["x"], zone: number) => [number, number]} */
export function toPlot({ start, stop }, axis, zone) {
  if (axis === "time") return [start / 1000 + MINUTE_MS * zone, stop / 1000 + MINUTE_MS * zone];
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

/** Steps that `about` shows. */
const ABOUT = 50;

/** A view around a step. @param {View} view @param {number} step @returns {View} */
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
