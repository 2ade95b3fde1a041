// A field in which the reader looks for something: tells what is written once it rests.

import { h, mark } from "./dom.js";

const REST_MS = 250;

/**
 * @param {string} name
 * @param {string} label
 * @param {string} placeholder
 * @param {(search: string) => void} onSearch
 */
export function searchField(name, label, placeholder, onSearch) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let resting;
  const tell = () => {
    if (resting === undefined) return;
    clearTimeout(resting);
    resting = undefined;
    onSearch(input.value.trim());
  };
  const input = h("input", {
    type: "search",
    name,
    "aria-label": label,
    placeholder,
    title: label,
    maxlength: 256,
    spellcheck: "false",
    autocomplete: "off",
    onchange: tell,
    oninput: () => {
      clearTimeout(resting);
      resting = setTimeout(tell, REST_MS);
    },
  });
  return input;
}

/**
 * Puts a search that came from elsewhere into the field, unless the reader is writing there.
 * @param {HTMLInputElement} input
 * @param {string} search
 */
export function offerSearch(input, search) {
  mark(input, "data-searching", search ? "" : null);
  if (document.activeElement !== input && input.value !== search) input.value = search;
}
