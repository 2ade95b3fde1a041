// A search field that reports its text once typing pauses.

import { h, mark } from "./dom.js";

const REST_MS = 250;

/** @type {(name: string, label: string, placeholder: string, onSearch: (search: string) => void) => HTMLInputElement} */
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

/** Show a search, unless the reader is typing. @type {(input: HTMLInputElement, search: string) => void} */
export function offerSearch(input, search) {
  mark(input, "data-searching", search ? "" : null);
  if (document.activeElement !== input && input.value !== search) input.value = search;
}
