// How bad it is, as a shape and a word: never by colour alone.

import { h, mark, say } from "./dom.js";
import { SEVERITY } from "./words.js";

/** @import { Severity } from "../types/page.js" */

export function verdict() {
  return h("span", { class: "badge verdict" }, h("span", { "aria-hidden": "true" }), h("span"));
}

/**
 * @param {Element} element what `verdict` made
 * @param {Severity | null} severity null: nothing is wrong
 * @param {string} [words] said in the place of the severity's own
 */
export function setVerdict(element, severity, words) {
  const [shape, word] = SEVERITY[severity ?? "healthy"];
  const [sign, text] = element.children;
  if (sign) say(sign, shape);
  if (text) say(text, words ?? word);
  mark(element, "data-severity", severity ?? "healthy");
}
