// Where the server is, whatever path a proxy shows it under: this module is at js/VERSION/root.js below it.

const ROOT = new URL("../..", import.meta.url);

/** The address of something on the server. @param {string} path without a slash before it */
export function at(path) {
  return new URL(path, ROOT).href;
}
