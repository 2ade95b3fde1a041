// Code to be written, with a button that copies it.

import { h, say } from "./dom.js";

const COPY = "Copy the code";
const COPIED_MS = 2000;

export class Code {
  #standing = h("p", { class: "caption" });
  #code = h("code");
  #text = h("pre", { tabindex: "0" }, this.#code);
  copy = h("button", { type: "button", onclick: () => void this.#copied() }, COPY);
  element = h("div", { class: "code", hidden: true }, this.#standing, this.#text, this.copy);

  /**
   * @param {string} code
   * @param {string} standing what it is beside the run's recommendation; nothing is shown of neither
   */
  show(code, standing) {
    this.element.hidden = code === "" && standing === "";
    this.#text.hidden = this.copy.hidden = code === "";
    say(this.#code, code);
    say(this.#standing, standing);
  }

  async #copied() {
    const done = await copied(this.#code);
    say(this.copy, done ? "Copied" : "Marked above");
    setTimeout(() => say(this.copy, COPY), COPIED_MS);
  }
}

/**
 * Copies an element's text; without the right to the clipboard, or without one, it is marked, for the reader to copy.
 * @param {Element} element
 * @returns {Promise<boolean>} whether it was copied
 */
async function copied(element) {
  const done = (await navigator.clipboard?.writeText(element.textContent ?? "").then(() => true, () => false)) ?? false;
  if (!done) getSelection()?.selectAllChildren(element);
  return done;
}
