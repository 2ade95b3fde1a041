// What the page asks of the browser: storage, downloads, the clipboard, and short messages at the foot of the page.

import { byId, h, say } from "./dom.js";
import { wordsOf } from "./server.js";

/** How long a message is shown at least, and in addition for each letter that must be read. */
const SHOWN_MS = 2400;
const LETTER_MS = 60;

/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;

/** The reader's choice, if the browser has storage. @param {string} key */
export function remembered(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

/** @type {(key: string, choice: string | null) => void} null forgets it */
export function remember(key, choice) {
  try {
    if (choice === null) localStorage.removeItem(key);
    else localStorage.setItem(key, choice);
  } catch {
    // Without storage the choice is not remembered.
  }
}

/** @param {string} name @param {string} address of its content: a data: or blob: URL */
export function download(name, address) {
  h("a", { href: address, download: name }).click();
}

/** @param {string} name @param {string} text @param {string} type */
export function downloadText(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  download(name, address);
  // The browser reads the blob only after this call.
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Copy text to the clipboard. Return false if the browser forbids it. @param {string} text */
export async function copied(text) {
  return (await navigator.clipboard?.writeText(text).then(() => true, () => false)) ?? false;
}

/** Copy text, and show a toast. @type {(text: string, what?: string) => Promise<void>} */
export async function copy(text, what = text) {
  toast((await copied(text)) ? `Copied ${what}` : `The browser blocked copying. Copy this text: ${text}`);
}

export const copyLink = () => copy(location.href, "a link to this view");

/** Show a short message. @param {string} words */
export function toast(words) {
  const place = byId("toast");
  clearTimeout(timer);
  // Announce the same words again.
  place.textContent = "";
  say(place, words);
  timer = setTimeout(() => say(place, ""), SHOWN_MS + LETTER_MS * words.length);
}

/** Do the work, or show that it failed. Return whether it succeeded. @param {() => Promise<unknown>} work */
export async function succeeded(work) {
  try {
    await work();
    return true;
  } catch (error) {
    toast(`Action failed: ${wordsOf(error)}`);
    return false;
  }
}
