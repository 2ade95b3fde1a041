// The theme: the system's unless the reader chose one, and its colours from roles.json.

import { remember, remembered } from "./browser.js";
import { urlOf } from "./server.js";

const KEY = "ampmon.theme";
const THEMES = ["light", "dark"];

/** @type {Record<string, Roles>} */
let themes = {};
/** @type {() => void} */
let tell = () => {};
const dark = matchMedia("(prefers-color-scheme: dark)");

/** Load and apply the colours, and follow system changes. @param {() => void} onChange called after each change */
export async function load(onChange) {
  const response = await fetch(urlOf("roles.json"));
  if (!response.ok) throw new Error(`roles.json: status ${response.status}`);
  themes = await response.json();
  tell = onChange;
  dark.addEventListener("change", apply);
  apply();
}

export function current() {
  return THEMES.find((theme) => theme === remembered(KEY)) ?? (dark.matches ? "dark" : "light");
}

export function roles() {
  return themes[current()] ?? {};
}

/** Switch to the other theme. It is remembered only if it is not the system's, which is followed. */
export function toggle() {
  const next = current() === "dark" ? "light" : "dark";
  remember(KEY, (next === "dark") === dark.matches ? null : next);
  apply();
}

function apply() {
  const root = document.documentElement;
  root.dataset.theme = current();
  root.style.colorScheme = current();
  for (const [role, colour] of Object.entries(roles())) if (typeof colour === "string") root.style.setProperty(`--${role}`, colour);
  tell();
}
