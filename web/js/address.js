// Parses and formats the address bar's hash: which page is shown, and with which view. Pure.

/** @type {View["x"][]} */
export const AXES = ["step", "time", "user"];

const RUN_ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

export const wholeView = () => view(new URLSearchParams());

/** A query of what is given: neither null nor "". @param {Record<string, string | number | Maybe>} values */
export function queryOf(values) {
  const given = Object.entries(values).filter(([, value]) => value != null && value !== "");
  return new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
}

/** Return a copy of `choices` with `name` set to `value`, or without `name` if `value` is "".
 * @type {(choices: View["choices"], name: string, value: string) => View["choices"]} */
export function chosen(choices, name, value) {
  const { [name]: _, ...others } = choices;
  return value ? { ...others, [name]: value } : others;
}

/** Parse a hash. An invalid run id, such as a truncated one, gives "nothing". @type {(hash: string) => Address} */
export function parse(hash) {
  const [path = "", query = ""] = hash.replace(/^#/, "").split("?");
  const [, page, run] = path.split("/");
  const options = new URLSearchParams(query);
  const runs = page === "compare" ? (options.get("runs") ?? "").split(",").filter(Boolean) : page === "runs" && run ? [run] : [];
  if (!runs.every((id) => RUN_ID.test(id))) return { page: "nothing" };
  if (page === "compare") return { page: "compare", runs, view: view(options) };
  if (page === "runs" && run) return { page: "run", run, view: view(options) };
  if (page === "alerts") return { page: "alerts" };
  return { page: "list", filters: Object.fromEntries(options) };
}

/** Build the hash that `parse` reads back. @param {Exclude<Address, {page: "nothing" | "alerts"}>} address */
export function format(address) {
  if (address.page === "list") return withQuery("#/", queryOf(address.filters));
  const { x, choices, ...own } = address.view;
  const query = queryOf({ x: x === "step" ? null : x, ...own, ...choices });
  if (address.page === "run") return withQuery(`#/runs/${encodeURIComponent(address.run)}`, query);
  query.delete("runs");
  return `#/compare?runs=${address.runs.map(encodeURIComponent).join(",")}${query.size ? `&${query}` : ""}`;
}

/** Build a figure's query. "parameter" and "rank" among the choices are fields of the view.
 * @param {View} view @param {readonly string[]} [names] of the choices */
export function figureQuery({ x, start, stop, stream, rank, parameter, choices }, names = []) {
  /** @type {Record<string, string | null>} */
  const given = { ...choices, rank, parameter };
  return queryOf({ x, start, stop, stream, ...Object.fromEntries(names.map((name) => [name, given[name]])) });
}

/** Every parameter that is not the view's own is a choice of a chart, by its name. @param {URLSearchParams} options @returns {View} */
function view(options) {
  const { x, start, stop, stream = null, rank = null, parameter = null, follow, at, runs: _, ...choices } = Object.fromEntries(options);
  return {
    x: AXES.find((axis) => axis === x) ?? "step",
    start: whole(start),
    stop: whole(stop),
    stream,
    rank,
    parameter,
    follow: whole(follow),
    at: whole(at),
    choices,
  };
}

/** @param {string} path @param {URLSearchParams} query */
const withQuery = (path, query) => query.size ? `${path}?${query}` : path;

/** @param {string} [text] */
const whole = (text = "") => /^\d{1,16}$/.test(text) ? Number(text) : null;

/** Null if the click opens nothing. @type {(figure: Figure | null, point: Point, view: View) => View | null} */
export function opened(figure, { y }, view) {
  const opens = figure?.layout.meta.opens;
  if (!figure || !opens) return null;
  const rows = figure.data[0]?.y;
  // A row has a name, or else a place from the top.
  const [name, value] = opens[typeof y === "number" ? Math.round(-y) : Array.isArray(rows) ? rows.indexOf(y) : -1] ?? [];
  if (name === undefined || value === undefined) return null;
  if (name === "parameter") return { ...view, parameter: value };
  return { ...view, choices: { ...view.choices, [name]: value } };
}
