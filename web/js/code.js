// Code to be written, with a button that copies it.

import { h, say } from "./dom.js";

const COPY = "Copy the code";
const COPIED_MS = 2000;

export class Code {
  #code = h("code");
  #text = h("pre", { tabindex: "0" }, this.#code);
  #copy = h("button", { type: "button", onclick: () => void this.#copied() }, COPY);
  element = h("div", { class: "code", hidden: true }, this.#text, this.#copy);

  /** @param {string} code nothing is shown of none */
  show(code) {
    this.element.hidden = code === "";
    say(this.#code, code);
  }

  async #copied() {
    const done = await copied(this.#code);
    say(this.#copy, done ? "Copied" : "Marked above");
    setTimeout(() => say(this.#copy, COPY), COPIED_MS);
  }
}

/**
 * Copies an element's text; without the right to the clipboard, or without one, it is marked, for the reader to copy.
 * @param {Element} element
 * @returns {Promise<boolean>} whether it was copied
 */
export async function copied(element) {
  const done = (await navigator.clipboard?.writeText(element.textContent ?? "").then(() => true, () => false)) ?? false;
  if (!done) getSelection()?.selectAllChildren(element);
  return done;
}
