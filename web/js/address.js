// Parses and formats the address bar's hash: which page is shown, and with which view. Pure.

/** @type {View["x"][]} */
export const AXES = ["step", "time", "user"];

/** The query parameters of a view. Every other parameter is a choice of a chart, by its name. */
const OWN = new Set(["x", "start", "stop", "stream", "rank", "parameter", "follow", "at"]);

const RUN_ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** @returns {View} */
export const wholeView = () => ({ x: "step", start: null, stop: null, stream: null, rank: null, parameter: null, follow: null, at: null, choices: {} });

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
  if (address.page === "list") return withQuery("#/", new URLSearchParams(address.filters));
  const query = viewQuery(address.view, address.view.x !== "step");
  if (address.page === "run") return withQuery(`#/runs/${encodeURIComponent(address.run)}`, query);
  query.delete("runs");
  return `#/compare?runs=${address.runs.map(encodeURIComponent).join(",")}${query.size ? `&${query}` : ""}`;
}

/** Build a view's query. `withAxis` includes the x axis. @type {(view: View, withAxis: boolean) => URLSearchParams} */
function viewQuery(view, withAxis) {
  const query = new URLSearchParams();
  if (withAxis) query.set("x", view.x);
  for (const name of /** @type {const} */ (["start", "stop", "stream", "rank", "parameter", "follow", "at"])) {
    const value = view[name];
    if (value !== null) query.set(name, String(value));
  }
  for (const [name, value] of Object.entries(view.choices)) query.set(name, value);
  return query;
}

/** Build a figure's query. "parameter" and "rank" among the choices are fields of the view.
 * @param {View} view @param {readonly string[]} [choices] */
export function figureQuery(view, choices = []) {
  const query = viewQuery({ ...view, follow: null, at: null, rank: null, parameter: null, choices: {} }, true);
  for (const name of choices) {
    const value = name === "parameter" || name === "rank" ? view[name] : view.choices[name];
    if (value !== null && value !== undefined) query.set(name, value);
  }
  return query;
}

/** @param {URLSearchParams} options @returns {View} */
function view(options) {
  const choices = Object.fromEntries([...options].filter(([name]) => !OWN.has(name) && name !== "runs"));
  return {
    x: AXES.find((axis) => axis === options.get("x")) ?? "step",
    start: whole(options.get("start")),
    stop: whole(options.get("stop")),
    stream: options.get("stream"),
    rank: options.get("rank"),
    parameter: options.get("parameter"),
    follow: whole(options.get("follow")),
    at: whole(options.get("at")),
    choices,
  };
}

/** @param {string} path @param {URLSearchParams} query */
const withQuery = (path, query) => query.size ? `${path}?${query}` : path;

/** @param {string | null} text */
const whole = (text) => text !== null && /^\d{1,16}$/.test(text) ? Number(text) : null;

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
