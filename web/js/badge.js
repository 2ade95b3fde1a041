// A run's status as a shape and a word: never by colour alone.

import { h, mark, say } from "./dom.js";
import { STATUS } from "./words.js";

/** @import { Status } from "../types/page.js" */

export function badge() {
  return h("span", { class: "badge" }, h("span", { "aria-hidden": "true" }), h("span"));
}

/**
 * @param {Element} element what `badge` made
 * @param {Status} status
 */
export function setBadge(element, status) {
  const [shape, meaning] = STATUS[status] ?? ["?", "Unknown to this page."];
  const [sign, word] = element.children;
  if (sign) say(sign, shape);
  if (word) say(word, status);
  mark(element, "data-status", status);
  mark(element, "title", meaning);
}
