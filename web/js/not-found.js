// The page shown if there is no such run.

import { h } from "./dom.js";

const GONE =
  "This server has no such run. It may have been deleted, or the address may be incomplete. " +
  "A run that just started appears once its first steps arrive.";

/** The page of an invalid address or a missing run. It follows all runs, which shows whether the server answers. @returns {Page} */
export function noPage() {
  return {
    title: "No such run",
    follows: [],
    element: h("article", {}, h("h1", {}, "No such run"), h("p", { class: "empty" }, GONE)),
    refresh: async () => {},
    look: ({ page }) => page === "nothing",
  };
}
