// The server's root, whatever path a proxy gives it: this module is at js/VERSION/root.js below it.

const ROOT = new URL("../..", import.meta.url);

/** The URL of a path on the server. @param {string} path without a leading slash */
export function urlOf(path) {
  return new URL(path, ROOT).href;
}
