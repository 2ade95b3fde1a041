// Where the server is: the directory above this one, whatever path a proxy shows it under.

const ROOT = new URL("..", import.meta.url);

/**
 * The address of something on the server.
 * @param {string} path without a slash before it
 */
export function at(path) {
  return new URL(path, ROOT).href;
}
