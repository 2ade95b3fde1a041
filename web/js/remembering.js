// The reader's choices that the browser remembers, if it has storage.

/** @param {string} key */
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
