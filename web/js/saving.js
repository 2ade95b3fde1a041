// Files of a chart: its data as CSV, an image with its words, and file names. Pure.

const NAME_MAX = 80;
const LETTER_PIXELS = 6;
const LINE_PIXELS = 16;
const HEAD_PIXELS = 36;
/** Stands for the infinities of a heatmap, as in charts/parameters.py. The cell's text gives the true value. */
const FAR = 9999;
/** Where scales of 0 and inf are drawn along an axis of log2, as in model/scale_policy.py. */
const [DEAD, ENDLESS] = [-128, 128];

/** @type {Record<string, new (buffer: ArrayBuffer) => ArrayLike<number>>} */
const ARRAYS = { i1: Int8Array, u1: Uint8Array, i2: Int16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };

/** A portable file name: "mlp-scale-step-0-399.png". @type {(parts: (string | number)[], ending: string) => string} */
export function fileName(parts, ending) {
  const words = parts.map((part) => String(part).normalize("NFKC").replace(/[^\p{L}\p{N}._]+/gu, "-").slice(0, NAME_MAX));
  const name = words.join("-").replace(/-{2,}/g, "-").replace(/^[-.]+|[-.]+$/g, "");
  return `${name || "chart"}.${ending}`;
}

/** A row for each point: series, x, y, a heatmap's value, and the text. @param {Figure} figure */
export function csvOf({ data, layout }) {
  const axis = layout.xaxis;
  const dated = axis?.type === "date";
  const rows = data.flatMap((trace) => rowsOf(trace, layout));
  return [["series", dated ? "time (UTC)" : (axis?.title?.text ?? "x"), "y", "value", "words"], ...rows].map((row) => row.map(cell).join(",") + "\r\n").join("");
}

/** The figure with its words above it, on a background of its own.
 * @type {(figure: Figure, run: string, ground: string, width: number) => Figure} */
export function framed({ data, layout }, run, ground, width) {
  const caption = lines(layout.meta.caption ?? "", Math.floor((width - 32) / LETTER_PIXELS));
  const head = HEAD_PIXELS + LINE_PIXELS * caption.length;
  const words = [`<b>${escapeMarkup(layout.meta.title)}</b>${run && ` · ${escapeMarkup(run)}`}`, ...caption.map((line) => `<span style="font-size:12px">${escapeMarkup(line)}</span>`)];
  const title = { text: words.join("<br>"), x: 0, xref: "container", xanchor: "left", y: 1, yref: "container", yanchor: "top", pad: { l: 16, t: 18 }, font: { size: 14, color: "role:ink" } };
  const height = layout.height + head;
  return { data, layout: { ...layout, title, width, height, paper_bgcolor: ground, margin: { ...layout.margin, t: (layout.margin?.t ?? 0) + head } } };
}

/** A column, unpacked if need be; a list of rows if it has two dimensions. @type {(values: unknown) => unknown[]} */
export function unpacked(values) {
  if (Array.isArray(values)) return values;
  if (typeof values !== "object" || values === null || !("bdata" in values)) return [];
  const { dtype, bdata, shape } = /** @type {PackedColumn} */ (values);
  const letters = atob(bdata);
  const bytes = new Uint8Array(letters.length);
  // A callback for each character takes twenty times as long.
  for (let at = 0; at < letters.length; at += 1) bytes[at] = letters.charCodeAt(at);
  const Kind = ARRAYS[dtype];
  if (Kind === undefined) throw new Error(`unknown dtype: ${dtype}`);
  const numbers = Array.from(new Kind(bytes.buffer));
  const across = Number(shape?.split(",")[1] ?? 0);
  if (across === 0) return numbers;
  return Array.from({ length: numbers.length / across }, (_, row) => numbers.slice(row * across, (row + 1) * across));
}

/** @param {Trace} trace @param {Layout} layout */
function rowsOf({ name, x, y, yaxis = "y", z, text }, { xaxis, meta: { bases = {} }, [yaxis.replace("y", "yaxis")]: axis }) {
  const said = unpacked(text);
  const dated = xaxis?.type === "date";
  const across = unpacked(x).map((at) => (dated ? dateOf(Number(at)) : valueOf(at, bases["x"])));
  const up = unpacked(y).map((at) => valueOf(at, bases[yaxis], /** @type {Axis} */ (axis)?.range?.[0]));
  if (z === undefined) return across.map((at, index) => [name, at, up[index], "", said[index]]);
  return unpacked(z).flatMap((row, level) => {
    const words = unpacked(said[level]);
    return unpacked(row).map((value, index) => [name, across[index], up[level], measured(value, words[index]), words[index]]);
  });
}

/** The value at a place along an axis of logarithms to a base; without one, the place. A share at the `floor` is 0.
 * @type {(at: unknown, base?: number, floor?: number) => unknown} */
function valueOf(at, base, floor = -Infinity) {
  if (base === undefined || !Number.isFinite(at)) return at;
  const value = Number(at) <= floor || at === DEAD ? 0 : at === ENDLESS ? Infinity : base ** Number(at);
  // The whole powers are exact, and seven digits of all others.
  return Number.isInteger(at) ? value : Number(value.toPrecision(7));
}

/** @param {unknown} value of a heatmap's cell @param {unknown} words */
const measured = (value, words) => words && Math.abs(Number(value)) === FAR ? "" : value;

/** A date as Plotly takes it, which ignores the Z. @param {number} x in ms since the epoch @param {number} [zone] minutes east of UTC */
export const dateOf = (x, zone = 0) => new Date(x + 60_000 * zone).toISOString();

/** @param {unknown} value */
function cell(value) {
  if (typeof value === "number") return value === Infinity ? "inf" : Number.isFinite(value) ? String(value) : "";
  // Names are untrusted, and a spreadsheet would run text that begins like a formula. With a decimal comma, it splits
  // even quoted text at semicolons. East Asian spreadsheets accept full-width signs as well.
  const words = String(value ?? "").replace(/(^|[;\t\r\n])(?=["'\s]*[=+\-@＝＋－＠]|[\t\r])/g, "$1'");
  return /[",;\t\r\n]/.test(words) ? `"${words.replaceAll('"', '""')}"` : words;
}

/** Break words into lines of at most `most` characters, or of one longer word. @type {(words: string, most: number) => string[]} */
const lines = (words, most) => words.match(new RegExp(`\\S.{0,${most - 1}}(?= |$)|\\S+`, "g")) ?? [];

/** Escape text for Plotly, which understands some HTML. @param {string} words */
const escapeMarkup = (words) => words.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
