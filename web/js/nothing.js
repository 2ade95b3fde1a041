// What stands in a page's place where there is no such run.

import { h } from "./dom.js";

/** @import { Page } from "../types/page.js" */

const GONE =
  "There is no such run here. It may have been deleted, or the end of its address is missing. " +
  "A run that has just begun is shown as soon as its first steps arrive.";

/** The words themselves. */
export function noSuchRun() {
  return [h("h1", {}, "No such run"), h("p", { class: "empty" }, GONE)];
}

/**
 * The page of an address that can be no run's. By the stream of all news it knows whether the server is there.
 * @returns {Page}
 */
export function noPage() {
  return {
    title: "No such run",
    follows: [],
    element: h("article", {}, ...noSuchRun()),
    refresh: async () => {},
    look: ({ page }) => page === "nothing",
  };
}
