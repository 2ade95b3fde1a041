// What stands in a page's place where there is no such run.

import { h } from "./dom.js";

/** @import { Address } from "../types/page.js" */

const GONE =
  "There is no such run here. It may have been deleted, or the end of its address is missing. " +
  "A run that has just begun is shown as soon as its first steps arrive.";

/** The words themselves. */
export function noSuchRun() {
  return [h("h1", {}, "No such run"), h("p", { class: "empty" }, GONE)];
}

/** The page of an address that can be no run's. */
export class Nothing {
  title = "No such run";
  /** All news: by their stream the page knows whether the server is there, and who reads. @type {string[]} */
  follows = [];
  element = h("article", {}, ...noSuchRun());

  async refresh() {}

  tick() {}

  /** @param {Address} address */
  look(address) {
    return address.page === "nothing";
  }

  recolour() {}

  close() {}
}
