// The row above a chart, which shows what a hover box would: the values of all traces at one x. `readAt` is pure.

import { h } from "./dom.js";
import { count, elapsed, percent, raised } from "./format.js";
import { unpacked } from "./saving.js";

const MARK_PIXELS = 6;

/** Columns come packed. Each is unpacked once, when first read. @type {WeakMap<object, unknown[]>} */
const known = new WeakMap();

/** @param {unknown} values */
function column(values) {
  if (typeof values !== "object" || values === null) return [];
  const numbers = known.get(values) ?? unpacked(values);
  known.set(values, numbers);
  return numbers;
}

/** Read each trace at a spot. Null reads the newest points, and skips bars and markers.
 * @type {(figure: Figure, spot: Spot | null) => Reading[]} */
export function readAt(figure, spot) {
  return figure.data.flatMap((trace) => {
    if (trace.hoverinfo === "skip") return [];
    const point = trace.type === "heatmap" ? cellAt(trace, spot, figure.layout.yaxis) : pointAt(trace, spot);
    const words = point && wordsOf(trace, point);
    const colour = trace.line?.color ?? trace.marker?.color ?? "";
    // Some bars have a colour each.
    return words ? [{ words, colour: typeof colour === "string" ? colour.replace(/^role:/, "") : "" }] : [];
  });
}

/** A place along x in words, as the axis has them. @param {Figure} figure @param {number} x */
export function placeWords({ layout: { meta, xaxis } }, x) {
  return filled(xaxis?.unifiedhovertitle?.text ?? "", { x: x + 60_000 * (meta?.zone ?? 0) });
}

/** A trace's point at a spot: a bar or marker in reach, a step line's last point, or another line's nearest.
 * @type {(trace: Trace, spot: Spot | null) => Record<string, unknown> | null} */
function pointAt({ type, mode, width = 0, line, meta, x, y, text, customdata }, spot) {
  const single = type === "bar" || mode === "markers";
  if (spot === null && single) return null;
  const places = /** @type {number[]} */ (column(x));
  const values = column(y);
  let at = spot === null ? places.length - 1 : places.findLastIndex((each) => each <= spot.x);
  const held = line?.shape === "hv" && !single;
  if (spot !== null && !held && (at < 0 || Number(places[at + 1]) - spot.x < spot.x - Number(places[at]))) at += 1;
  // A line may end with a gap: then the value before it is the newest.
  while (spot === null && at > 0 && !Number.isFinite(values[at])) at -= 1;
  const off = spot === null ? 0 : Math.abs(Number(places[at]) - spot.x);
  const reach = single ? Math.max(width / 2, spot?.near ?? 0) : meta?.exact ? 0 : Infinity;
  // A step line that breaks at its next point has nothing in between.
  const broken = held && off > 0 && at + 1 < values.length && !Number.isFinite(values[at + 1]);
  if (at < 0 || !Number.isFinite(values[at]) || off > reach || broken) return null;
  return { y: values[at], text: column(text)[at], customdata: column(customdata)[at] };
}

/** A heatmap's cell at a spot. The y axis has a range of numbers, or else a named row for each place from the top.
 * @type {(trace: Trace, spot: Spot | null, axis?: Axis) => Record<string, unknown> | null} */
function cellAt({ x, y, z, text, customdata }, spot, axis) {
  if (spot === null || spot.up === null) return null;
  const rows = column(y);
  const [low, high] = axis?.range ?? [rows.length - 0.5, -0.5];
  const up = low + spot.up * (high - low);
  const row = axis?.range ? rows.findIndex((each) => Math.abs(Number(each) - up) <= 0.5) : Math.round(up);
  const across = nearest(/** @type {number[]} */ (column(x)), spot.x);
  const values = [z, text, customdata].map((cells) => /** @type {unknown[][]} */ (column(cells))[row]?.[across]);
  return values[0] === undefined || Number.isNaN(values[0]) ? null : { y: rows[row], z: values[0], text: values[1], customdata: values[2] };
}

/** @param {number[]} places @param {number} x */
function nearest(places, x) {
  return places.reduce((best, each, index) => (Math.abs(each - x) < Math.abs(Number(places[best]) - x) ? index : best), 0);
}

/** @param {Trace} trace @param {Record<string, unknown>} point */
function wordsOf({ name = "", hovertemplate }, point) {
  if (!hovertemplate) return plain(String(point["text"] ?? ""));
  // The row shows x once, before all values.
  const words = filled(hovertemplate.replace(/<extra>.*$/, "").replace(/[^<>]*(<sup>)?%\{x[^}]*\}(<\/sup>)?(<br>|: |, )?/, ""), point);
  return hovertemplate.includes("<extra>") ? words : `${plain(name)} ${words}`;
}

/** @param {string} template as Plotly has them: "%{y:.3g}" @param {Record<string, unknown>} values */
function filled(template, values) {
  return plain(template.replace(/%\{(\w+)([^}]*)\}/g, (_, key, format) => said(values[key], format)));
}

/** @param {unknown} value
 * @param {string} format ":,d", ":.3~%", ":.6g", ":,.2~f"; for a time "|%X", "|%Y-%m-%d %X" or "|elapsed" */
function said(value, format) {
  if (typeof value !== "number" || format === "") return String(value ?? "");
  if (format === "|elapsed") return elapsed(value / 1000);
  if (format.startsWith("|")) return new Date(value).toISOString().slice(format === "|%X" ? 11 : 0, 19).replace("T", " ");
  if (format.endsWith("%")) return percent(value);
  const digits = Number(/\.(\d+)/.exec(format)?.[1] ?? 0);
  if (format.endsWith("g")) return String(Number(value.toPrecision(digits)));
  return count(Number(value.toFixed(digits)));
}

/** @param {string} words with the HTML that Plotly understands */
function plain(words) {
  return words
    .replace(/<sup>(.*?)<\/sup>/g, (_, power) => raised(String(power)))
    .replace(/<br>/g, ", ")
    .replace(/<[^>]*>/g, "")
    .replaceAll("&lt;", "<")
    .replaceAll("&gt;", ">")
    .replaceAll("&amp;", "&");
}

export class Readout {
  element = h("p", { class: "readout" });
  /** @type {Figure | null} */
  #figure = null;
  /** Shown while there is nothing to read. */
  #rest = "";
  /** @type {{x: number, up: number | null} | null} */
  #pointed = null;
  /** @type {number | null} */
  #marked = null;

  /** @param {HTMLElement} plot its style gets the lines' places, as shares of x */
  constructor(plot) {
    this.plot = plot;
  }

  /** `caption` is of a chart that shows it nowhere else: its first sentence stands here while there is nothing to read.
   * @param {Figure} figure one with numbers along x and vertical bars @param {string} [caption] */
  show(figure, caption = "") {
    this.#figure = figure;
    this.#rest = caption.split(/(?<=\.) /)[0] ?? "";
    if (this.element.offsetHeight > 0) this.#reserve();
    this.#write();
  }

  /** Reserve the rows that the values take at a step, so that the plot below does not move under the pointer. A hidden
   * row keeps what it has. */
  #reserve() {
    const [, x = null] = this.#figure?.layout.xaxis?.range ?? [];
    this.element.style.minHeight = "";
    this.#write(x === null ? null : { x, up: 0.5 });
    this.element.style.minHeight = `${this.element.offsetHeight}px`;
  }

  /** Read at a place, else at the mark, else at the newest. @param {number | null} x @param {number | null} up */
  point(x, up) {
    this.#pointed = x === null ? null : { x, up };
    this.#write();
  }

  /** @param {number | null} x */
  mark(x) {
    this.#marked = x;
    this.#write();
  }

  #write(place = this.#pointed) {
    if (!this.#figure) return;
    const { range, fixedrange, unifiedhovertitle } = this.#figure.layout.xaxis ?? {};
    if (!range) return;
    const [low, high] = range;
    const within = (/** @type {number | null | undefined} */ x) => (x != null && low <= x && x <= high ? x : null);
    const pointed = within(place?.x);
    // A chart with its own axis has no place for a step.
    const marked = fixedrange ? null : within(this.#marked);
    const share = (/** @type {number | null} */ x) => (x === null ? "" : String((x - low) / (high - low)));
    this.plot.style.setProperty("--cross", share(pointed));
    this.plot.style.setProperty("--mark", share(marked));
    const chosen = fixedrange ? within(this.#figure.layout.meta.slider?.value) : null;
    const found = pointed ?? marked ?? chosen;
    // Whole numbers have nothing to read between them.
    const x = found !== null && /d\}/.test(unifiedhovertitle?.text ?? "") ? Math.round(found) : found;
    const spot = x === null ? null : { x, up: place?.up ?? null, near: ((high - low) * MARK_PIXELS) / this.plot.clientWidth };
    const read = readAt(this.#figure, spot);
    const where = x === null ? "" : placeWords(this.#figure, x);
    const texts = read.map(({ words, colour }) => h("span", {}, colour && swatch(colour), withoutPlace(words, where)));
    if (x === null && !texts.length && this.#rest) texts.push(h("span", {}, this.#rest));
    this.element.replaceChildren(...(where ? [h("b", {}, where)] : []), ...texts);
    this.element.title = [...this.element.children].map(({ textContent }) => textContent).join(" ");
  }
}

/** Words without the place, which is shown once before all of them. @param {string} words @param {string} where */
function withoutPlace(words, where) {
  if (where === "") return words;
  if (words.endsWith(`, ${where}`)) return words.slice(0, -where.length - 2);
  return words.startsWith(`${where}: `) || words.startsWith(`${where}, `) ? words.slice(where.length + 2) : words;
}

/** @param {string} role */
export function swatch(role) {
  const square = h("i");
  square.style.background = `var(--${role})`;
  return square;
}
