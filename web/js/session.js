// The browser's session: a cookie, or in a frame, where third-party cookies are blocked, a secret in memory.

import { urlOf } from "./root.js";

/** @type {string | null} */
let secret = null;
/** @type {(() => void)[]} */
const refused = [];

/** Headers for every call. @returns {Record<string, string>} */
export function credentials() {
  return secret === null ? {} : { Authorization: `Bearer ${secret}` };
}

/** @param {() => void} listener called whenever a call is refused for lack of a session */
export function onRefused(listener) {
  refused.push(listener);
}

/** Report that a call was answered with 401. */
export function reportUnauthorized() {
  for (const listener of refused) listener();
}

/** Trade a one-time link, its code or the token for a session. Rejects with a message to show. @param {string} given */
export async function signIn(given) {
  const framed = window.parent !== window;
  const response = await fetch(urlOf("login"), {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ key: loginKey(given), memory: framed }),
    signal: AbortSignal.timeout(15_000),
  }).catch(() => {
    throw new Error("The server did not answer. Try again.");
  });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.detail ?? `The server rejected the request: status ${response.status}.`);
  if (framed) secret = answer.session;
}

/** End the session, here and in the browser's other tabs. Rejects if the server refuses or does not answer. */
export async function signOut() {
  const response = await fetch(urlOf("logout"), { method: "POST", headers: credentials(), signal: AbortSignal.timeout(15_000) });
  // With status 401 the session had ended already.
  if (!response.ok && response.status !== 401) throw new Error(`The server rejected the request: status ${response.status}.`);
  secret = null;
}

/** Sign in with the code in the address, if any, and remove it from there. Never rejects. */
export async function signInFromAddress() {
  const [path = "", query = ""] = location.hash.split("?");
  const options = new URLSearchParams(query);
  const code = options.get("code");
  if (code === null) return;
  options.delete("code");
  history.replaceState(null, "", (path || "#/") + (options.size ? `?${options}` : ""));
  // If the code is invalid, the first call shows that, unless a cookie lets it in.
  await signIn(code).catch(() => {});
}

/** The code in a link of `ampmon token link`, else the text itself. @param {string} given */
export function loginKey(given) {
  const words = given.trim();
  return /[?&]code=([\w-]+)/.exec(words)?.[1] ?? words;
}
