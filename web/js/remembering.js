// What the browser remembers of the reader's choices; without storage they last as long as the page.

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
    // The page goes on without.
  }
}
