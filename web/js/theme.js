// The theme: the system's, unless the reader chose; and the colours of its roles, from the one file that has them.

import { at } from "./root.js";

/** @import { Roles } from "../types/page.js" */

const KEY = "ampmon.theme";

/** @type {Record<string, Roles>} */
let themes = {};
/** @type {(() => void)[]} */
const listeners = [];
const dark = matchMedia("(prefers-color-scheme: dark)");

/** Reads the roles, puts them on the page, and follows the system from then on. */
export async function load() {
  const response = await fetch(at("roles.json"));
  if (!response.ok) throw new Error(`roles.json: status ${response.status}`);
  themes = await response.json();
  dark.addEventListener("change", apply);
  apply();
}

/** The theme that is shown. */
export function current() {
  const chosen = remembered();
  return chosen ?? (dark.matches ? "dark" : "light");
}

/** The colours of the theme that is shown. */
export function roles() {
  return themes[current()] ?? {};
}

/** Changes to the other theme, and remembers it; the system's own is not remembered, but followed. */
export function toggle() {
  const next = current() === "dark" ? "light" : "dark";
  try {
    if ((next === "dark") === dark.matches) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
  } catch {
    // Without storage the choice cannot be kept, and the system's theme stays.
  }
  apply();
}

/** @param {() => void} listener called after each change */
export function onChange(listener) {
  listeners.push(listener);
}

function remembered() {
  try {
    const chosen = localStorage.getItem(KEY);
    return chosen === "dark" || chosen === "light" ? chosen : null;
  } catch {
    return null;
  }
}

function apply() {
  const root = document.documentElement;
  root.dataset.theme = current();
  root.style.colorScheme = current();
  for (const [role, colour] of Object.entries(roles())) {
    if (typeof colour === "string") root.style.setProperty(`--${role}`, colour);
  }
  for (const listener of listeners) listener();
}
