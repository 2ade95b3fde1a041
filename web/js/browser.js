// What the page asks of the browser: storage, the theme, downloads, the clipboard, and short messages at its foot.

import { byId, h, say } from "./dom.js";
import { urlOf, wordsOf } from "./server.js";

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

/** How to scroll to a place: at once if the reader's system asks for less motion. */
export const motion = () => (matchMedia("(prefers-reduced-motion: reduce)").matches ? "instant" : "smooth");

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

const THEME = "ampmon.theme";
const THEMES = ["light", "dark"];

/** @type {Record<string, Roles>} */
let themes = {};
/** @type {() => void} */
let onTheme = () => {};
const dark = matchMedia("(prefers-color-scheme: dark)");
// Browsers print no backgrounds, so paper is light.
const paper = matchMedia("print");

/** Load and apply the colours, and follow the system and other tabs. @param {() => void} onChange called after each change */
export async function loadTheme(onChange) {
  const response = await fetch(urlOf("roles.json"));
  if (!response.ok) throw new Error(`roles.json: status ${response.status}`);
  themes = await response.json();
  onTheme = onChange;
  for (const query of [dark, paper]) query.addEventListener("change", applyTheme);
  window.addEventListener("storage", applyTheme);
  applyTheme();
}

export const theme = () => (paper.matches ? "light" : (THEMES.find((each) => each === remembered(THEME)) ?? (dark.matches ? "dark" : "light")));

export const roles = () => themes[theme()] ?? {};

/** Switch to the other theme. It is remembered only if it is not the system's, which is followed. */
export function toggleTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  remember(THEME, (next === "dark") === dark.matches ? null : next);
  applyTheme();
}

function applyTheme() {
  const { dataset, style } = document.documentElement;
  if (dataset.theme === theme()) return;
  dataset.theme = style.colorScheme = theme();
  for (const [role, colour] of Object.entries(roles())) if (typeof colour === "string") style.setProperty(`--${role}`, colour);
  onTheme();
}
