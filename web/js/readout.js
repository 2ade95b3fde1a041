// What a chart says at a place along x, in a row above it: of each trace the words of its point there, as a hover box
// would have them. `readAt` is pure.

import { h } from "./dom.js";
import { count, percent, raised } from "./format.js";
import { unpacked } from "./saving.js";

/** @import { Figure } from "../types/page.js" */

/** Where a chart is read: x in Plotly's terms, how far up as a share, and how much of x a mark may be off. */
/** @typedef {{x: number, up: number | null, near: number}} Spot */
/** @typedef {{words: string, colour: string}} Reading */

/**
 * @typedef {{type: string, mode?: string, name?: string, hoverinfo?: string, hovertemplate?: string, width?: number,
 *   x?: unknown, y?: unknown, text?: unknown, customdata?: unknown, z?: unknown,
 *   meta?: {exact?: boolean}, line?: {shape?: string, color?: string}, marker?: {color?: string}}} Trace
 * @typedef {{range?: [number, number], fixedrange?: boolean, unifiedhovertitle?: {text: string}}} Axis
 */

const MARK_PIXELS = 6;

/** Columns come packed: each is unpacked once, when it is first read. @type {WeakMap<object, unknown[]>} */
const known = new WeakMap();

/** @param {unknown} values */
function column(values) {
  if (typeof values !== "object" || values === null) return [];
  const numbers = known.get(values) ?? unpacked(values);
  known.set(values, numbers);
  return numbers;
}

/**
 * What each trace says at a spot; at the newest points where that is null, and nothing of single marks.
 * @type {(figure: Figure, spot: Spot | null) => Reading[]}
 */
export function readAt(figure, spot) {
  const { yaxis } = /** @type {{yaxis?: Axis}} */ (figure.layout);
  return figure.data.flatMap((each) => {
    const trace = /** @type {Trace} */ (each);
    if (trace.hoverinfo === "skip") return [];
    const point = trace.type === "heatmap" ? cellAt(trace, spot, yaxis) : pointAt(trace, spot);
    const words = point && wordsOf(trace, point);
    return words ? [{ words, colour: (trace.line?.color ?? trace.marker?.color ?? "").replace(/^role:/, "") }] : [];
  });
}

/** The spot in words, as the axis has them. @param {Figure} figure @param {number} x */
export function placeWords({ layout }, x) {
  const { unifiedhovertitle } = /** @type {Axis} */ (layout.xaxis ?? {});
  return unifiedhovertitle ? filled(unifiedhovertitle.text, { x }) : "";
}

/**
 * The values of a trace's point at a spot: of a bar or a mark that is there, of a line that is held or near.
 * @type {(trace: Trace, spot: Spot | null) => Record<string, unknown> | null}
 */
function pointAt({ type, mode, width = 0, line, meta, x, y, text, customdata }, spot) {
  const single = type === "bar" || mode === "markers";
  if (spot === null && single) return null;
  const places = /** @type {number[]} */ (column(x));
  const values = column(y);
  let at = spot === null ? places.length - 1 : places.findLastIndex((each) => each <= spot.x);
  const held = line?.shape === "hv" && !single;
  if (spot !== null && !held && (at < 0 || Number(places[at + 1]) - spot.x < spot.x - Number(places[at]))) at += 1;
  // What is not there ends a line: at its very end the value before it is still the newest.
  while (spot === null && at > 0 && !Number.isFinite(values[at])) at -= 1;
  const off = spot === null ? 0 : Math.abs(Number(places[at]) - spot.x);
  const reach = single ? Math.max(width / 2, spot?.near ?? 0) : meta?.exact ? 0 : Infinity;
  // Where a held line breaks at its next point there is nothing in between.
  const broken = held && off > 0 && at + 1 < values.length && !Number.isFinite(values[at + 1]);
  if (at < 0 || !Number.isFinite(values[at]) || off > reach || broken) return null;
  return { y: values[at], text: column(text)[at], customdata: column(customdata)[at] };
}

/**
 * The same of a heatmap's cell. An axis has numbers from its range's lower end up, or a row for each name from its top down.
 * @type {(trace: Trace, spot: Spot | null, axis?: Axis) => Record<string, unknown> | null}
 */
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
  // Where along x it is stands before all of them.
  const words = filled(hovertemplate.replace(/<extra>.*$/, "").replace(/[^<>]*(<sup>)?%\{x[^}]*\}(<\/sup>)?(<br>|: |, )?/, ""), point);
  return hovertemplate.includes("<extra>") ? words : `${plain(name)} ${words}`;
}

/** @param {string} template as Plotly has them: "%{y:.3g}" @param {Record<string, unknown>} values */
function filled(template, values) {
  return plain(template.replace(/%\{(\w+)([^}]*)\}/g, (_, key, format) => said(values[key], format)));
}

/** @param {unknown} value @param {string} format ":,d", ":.3~%", ":.6g", ":,.2~f", or "|%X" of a time */
function said(value, format) {
  if (typeof value !== "number" || format === "") return String(value ?? "");
  if (format.startsWith("|")) return new Date(value).toISOString().slice(11, 19);
  if (format.endsWith("%")) return percent(value);
  const digits = Number(/\.(\d+)/.exec(format)?.[1] ?? 0);
  if (format.endsWith("g")) return String(Number(value.toPrecision(digits)));
  const [whole = "", fraction = ""] = value.toFixed(digits).split(".");
  const rest = fraction.replace(/0+$/, "");
  return count(Number(whole)) + (rest && `.${rest}`);
}

/** @param {string} words some of HTML, as Plotly takes it */
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
  /** @type {{x: number, up: number | null} | null} */
  #pointed = null;
  /** @type {number | null} */
  #marked = null;

  /** @param {HTMLElement} plot whose style has the shares of x where the lines are */
  constructor(plot) {
    this.plot = plot;
  }

  /** @param {Figure} figure one that has words for a place: its x are numbers, its bars stand */
  show(figure) {
    this.#figure = figure;
    this.#write();
  }

  /** Reads at a place, or at the mark, or else at the newest. @param {number | null} x @param {number | null} up */
  point(x, up) {
    this.#pointed = x === null ? null : { x, up };
    this.#write();
  }

  /** @param {number | null} x */
  mark(x) {
    this.#marked = x;
    this.#write();
  }

  #write() {
    if (!this.#figure) return;
    const { range, fixedrange, unifiedhovertitle } = /** @type {Axis} */ (this.#figure.layout.xaxis ?? {});
    if (!range) return;
    const [low, high] = range;
    const within = (/** @type {number | null | undefined} */ x) => (x != null && low <= x && x <= high ? x : null);
    const pointed = within(this.#pointed?.x);
    // An axis that is a chart's own has no place for a step.
    const marked = fixedrange ? null : within(this.#marked);
    this.#place("--cross", pointed, low, high);
    this.#place("--mark", marked, low, high);
    const found = pointed ?? marked;
    // Between steps there is nothing to read.
    const x = found !== null && /d\}/.test(unifiedhovertitle?.text ?? "") ? Math.round(found) : found;
    const spot = x === null ? null : { x, up: this.#pointed?.up ?? null, near: ((high - low) * MARK_PIXELS) / this.plot.clientWidth };
    const read = readAt(this.#figure, spot);
    const where = x === null ? "" : placeWords(this.#figure, x);
    const told = read.map(({ words, colour }) => h("span", {}, colour && swatch(colour), bare(words, where)));
    this.element.replaceChildren(...(where ? [h("b", {}, where)] : []), ...told);
    this.element.title = [...this.element.children].map(({ textContent }) => textContent).join(" ");
  }

  /** @type {(name: string, x: number | null, low: number, high: number) => void} */
  #place(name, x, low, high) {
    if (x === null) this.plot.style.removeProperty(name);
    else this.plot.style.setProperty(name, String((x - low) / (high - low)));
  }
}

/** Words without the place that is told before them. @param {string} words @param {string} where */
function bare(words, where) {
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
