// The address bar: which page is shown, and which stretch of a run. Pure.

/** @import { Address, View } from "../types/page.js" */

/** What can be along the horizontal axis. @type {View["x"][]} */
export const AXES = ["step", "time", "user"];

/** What a view has besides: whatever else is in the query is a choice of some chart, by its name. */
const OWN = new Set(["x", "start", "stop", "stream", "rank", "parameter", "follow", "at"]);

const RUN_ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** A view of a whole run, nothing chosen. @returns {View} */
export function wholeView() {
  return { x: "step", start: null, stop: null, stream: null, rank: null, parameter: null, follow: null, at: null, choices: {} };
}

/**
 * Choices of which one is another, or none where it is "".
 * @type {(choices: View["choices"], name: string, value: string) => View["choices"]}
 */
export function chosen(choices, name, value) {
  const { [name]: _, ...others } = choices;
  return value ? { ...others, [name]: value } : others;
}

/**
 * What an address asks for. One with what is no run's id, as a link that was cut has, is of nothing.
 * @type {(hash: string) => Address}
 */
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

/** The hash that `parse` reads back. @param {Exclude<Address, {page: "nothing" | "alerts"}>} address */
export function format(address) {
  if (address.page === "list") return withQuery("#/", new URLSearchParams(address.filters));
  const query = viewQuery(address.view, address.view.x !== "step");
  if (address.page === "run") return withQuery(`#/runs/${encodeURIComponent(address.run)}`, query);
  query.delete("runs");
  return `#/compare?runs=${address.runs.map(encodeURIComponent).join(",")}${query.size ? `&${query}` : ""}`;
}

/**
 * A view as the address bar has it, and its axis though it were the usual one.
 * @type {(view: View, withAxis: boolean) => URLSearchParams}
 */
export function viewQuery(view, withAxis) {
  const query = new URLSearchParams();
  if (withAxis) query.set("x", view.x);
  for (const name of /** @type {const} */ (["start", "stop", "stream", "rank", "parameter", "follow", "at"])) {
    const value = view[name];
    if (value !== null) query.set(name, String(value));
  }
  for (const [name, value] of Object.entries(view.choices)) query.set(name, value);
  return query;
}

/**
 * What a figure is asked for: the stretch, the scaler and, of the reader's choices, those that it knows.
 * @param {View} view
 * @param {readonly string[]} [choices] the names of the choices, "parameter" and "rank" among them where it takes those
 */
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
function withQuery(path, query) {
  return query.size ? `${path}?${query}` : path;
}

/** @param {string | null} text */
function whole(text) {
  return text !== null && /^\d{1,16}$/.test(text) ? Number(text) : null;
}
