// The address bar: which page is shown, and which stretch of a run. Pure.

/** @import { Address, View } from "../types/page.js" */

/** What can be along the horizontal axis. @type {View["x"][]} */
export const AXES = ["step", "time", "user"];

/**
 * @param {string} hash what follows "#", or ""
 * @returns {Address}
 */
export function parse(hash) {
  const [path = "", query = ""] = hash.replace(/^#/, "").split("?");
  const [, page, run] = path.split("/");
  if (page !== "runs" || !run) return { page: "list" };
  const options = new URLSearchParams(query);
  return {
    page: "run",
    run: decodeURIComponent(run),
    view: {
      x: AXES.find((axis) => axis === options.get("x")) ?? "step",
      start: whole(options.get("start")),
      stop: whole(options.get("stop")),
      stream: options.get("stream"),
    },
  };
}

/**
 * The hash that `parse` reads back.
 * @param {Address} address
 */
export function format(address) {
  if (address.page === "list") return "#/";
  const query = viewQuery(address.view, address.view.x !== "step");
  return `#/runs/${encodeURIComponent(address.run)}${query ? `?${query}` : ""}`;
}

/**
 * A view as a query, as the address bar and the figures' calls have it.
 * @param {View} view
 * @param {boolean} withAxis whether to name the axis even where it is the usual one
 */
export function viewQuery(view, withAxis) {
  const query = new URLSearchParams();
  if (withAxis) query.set("x", view.x);
  if (view.start !== null) query.set("start", String(view.start));
  if (view.stop !== null) query.set("stop", String(view.stop));
  if (view.stream !== null) query.set("stream", view.stream);
  return query.toString();
}

/** @param {string | null} text */
function whole(text) {
  return text !== null && /^\d{1,16}$/.test(text) ? Number(text) : null;
}
