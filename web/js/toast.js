// A few words about what was just done, for a moment, at the foot of the page.

import { h, say } from "./dom.js";

const SHOWN_MS = 2400;

/** @type {HTMLElement | null} */
let place = null;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;

/** Makes room for it: what is read aloud must be there before its words are. */
export function install() {
  place = document.body.appendChild(h("p", { class: "toast", role: "status" }));
}

/** @param {string} words */
export function toast(words) {
  if (place === null) return;
  clearTimeout(timer);
  // The same words again are news too.
  place.textContent = "";
  say(place, words);
  timer = setTimeout(() => place && say(place, ""), SHOWN_MS);
}

/** Does what the reader asked for, or says that it failed; gives which. @param {() => Promise<unknown>} work */
export async function tried(work) {
  try {
    await work();
    return true;
  } catch (error) {
    toast(`Action failed: ${error instanceof Error ? error.message : error}`);
    return false;
  }
}
