// Formats numbers and times. Pure. The server's words.py gives the same text: one golden file tests both.

/** Narrow no-break space: between thousands, and before a unit. */
const SPACE = "\u202f";

export const NONE = "–";
/** Letters of a run's name that fit three lines of a narrow column. */
export const NAME_MAX = 44;

/** A number with spaces between thousands. @param {number} number */
export const count = (number) => String(number).replace(/(?<!\.\d*)\B(?=(\d{3})+(?!\d))/g, SPACE);

/** A share of 0..1: two digits below 10 %, else one decimal. "0 %" and "100 %" are exact. @param {Maybe} share */
export function percent(share) {
  if (share == null) return NONE;
  const parts = 100 * share;
  if (parts === 0 || parts === 100) return `${parts}${SPACE}%`;
  if (parts >= 99.95) return `>${SPACE}99.9${SPACE}%`;
  if (parts < 1e-6) return `<${SPACE}0.000001${SPACE}%`;
  return `${Number(parts >= 9.95 ? parts.toFixed(1) : parts.toPrecision(2))}${SPACE}%`;
}

/** A power of two: "2⁻¹⁴", "2⁹·⁹⁷". @param {number} exponent */
export const twoTo = (exponent) => `2${raised(String(exponent))}`;

/** The digits of a number as superscripts. @param {string} digits */
export const raised = (digits) => digits.replace(/[-−.\d]/g, (sign) => "⁻⁻·⁰¹²³⁴⁵⁶⁷⁸⁹".charAt("-−.0123456789".indexOf(sign)));

/** @param {number} number @param {string} one @param {string} [many] */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** A range of steps, both ends included. @param {number} first @param {number} last */
export const steps = (first, last) => first === last ? `step ${count(first)}` : `steps ${count(first)} – ${count(last)}`;

/** A duration in its two largest units: "3 min 20 s". @param {number} seconds */
export function duration(seconds) {
  const units = /** @type {const} */ ([["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]);
  let rest = Math.max(0, Math.floor(seconds));
  const amounts = units.map(([unit, size]) => {
    const amount = Math.floor(rest / size);
    rest %= size;
    return amount ? `${amount}${SPACE}${unit}` : "";
  });
  const first = amounts.findIndex(Boolean);
  return first < 0 ? `0${SPACE}s` : amounts.slice(first, first + 2).filter(Boolean).join(" ");
}

/** A time since a start, which may be before it: "−2.5 s", "1 d 2 h". @param {number} seconds */
export function elapsed(seconds) {
  const size = Math.abs(seconds);
  return (seconds < 0 ? "−" : "") + (size < 60 ? `${Number(size.toPrecision(3))}${SPACE}s` : duration(size));
}

/** How long ago, in the largest unit. @param {number} seconds */
export function ago(seconds) {
  if (seconds < 2) return "now";
  return `${duration(seconds).split(" ")[0]} ago`;
}

/** A local date and time with its zone. @type {(us: number, locale?: string, zone?: string) => string} */
export function moment(time, locale, zone) {
  return new Date(time / 1000).toLocaleString(locale, { dateStyle: "medium", timeStyle: "long", timeZone: zone });
}

/** A local date and time, to the second. @param {number} time microseconds since the epoch */
export const clock = (time) => new Date(time / 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** The reader's time zone at a time (microseconds; null: now), in minutes east of UTC. @param {number | null} time */
export const zoneOf = (time) => -(time === null ? new Date() : new Date(time / 1000)).getTimezoneOffset();

/** Between two letters, as in model/names.py: not before an accent, within an emoji or between two flags. */
const APART = "(?<!\u200d)(?![\\p{M}\\p{Cf}\\p{EMod}\u0e33\u0eb3\u1160-\u11ff]|(?<=\\p{RI})\\p{RI})";

/** A name of at most `most` letters, an even number. Long names often differ only at an end. @type {(name: string, most: number) => string} */
export const shortened = (name, most) => name.replace(new RegExp(`^(?=.{${most + 1}})(.{1,${most / 2}})${APART}.+?${APART}(.{1,${most / 2 - 1}})$`, "su"), "$1…$2");

/** Text that leaves the words beside it in their order. @param {string} text */
export const isolated = (text) => /[\u0590-\u08ff\u200e\u200f\u202a-\u202e\u2066-\u2069]/.test(text) ? `\u2068${text}\u2069` : text;

/** @param {string} words */
export const sentence = (words) => words.charAt(0).toUpperCase() + words.slice(1);

/** A finding's title without the backticks around names. @param {string} title */
export const unquoted = (title) => title.replaceAll("`", "");
