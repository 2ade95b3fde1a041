// A short message at the foot of the page about what was just done.

import { h, say } from "./dom.js";

/** How long a message is shown at least, and in addition for each letter that must be read. */
const SHOWN_MS = 2400;
const LETTER_MS = 60;

/** @type {HTMLElement | null} */
let place = null;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;

/** Create the element early: screen readers announce only changes of an element that exists. */
export function install() {
  place = document.body.appendChild(h("p", { class: "toast", role: "status" }));
}

/** @param {string} words */
export function toast(words) {
  if (place === null) return;
  clearTimeout(timer);
  // Announce the same words again.
  place.textContent = "";
  say(place, words);
  timer = setTimeout(() => place && say(place, ""), SHOWN_MS + LETTER_MS * words.length);
}

/** Do the work, or show that it failed. Return whether it succeeded. @param {() => Promise<unknown>} work */
export async function succeeded(work) {
  try {
    await work();
    return true;
  } catch (error) {
    toast(`Action failed: ${error instanceof Error ? error.message : error}`);
    return false;
  }
}
