// How the server knows this browser: by a cookie, or, in a frame, where another site's page would be sent none, by a
// secret in memory. Knows no page and no call but the one that signs in.

import { at } from "./root.js";

/** @type {string | null} */
let secret = null;
/** @type {(() => void)[]} */
const refused = [];

/** Headers that every call carries. @returns {Record<string, string>} */
export function credentials() {
  return secret === null ? {} : { Authorization: `Bearer ${secret}` };
}

/** @param {() => void} listener called whenever a call was refused for want of a session */
export function onRefused(listener) {
  refused.push(listener);
}

/** A call was answered 401. */
export function refuse() {
  for (const listener of refused) listener();
}

/**
 * Trades a one-time link, its code, or the token for a session. Rejects in words for the reader.
 * @param {string} given
 */
export async function signIn(given) {
  const framed = window.parent !== window;
  const response = await fetch(at("login"), {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ key: keyIn(given), memory: framed }),
    signal: AbortSignal.timeout(15_000),
  }).catch(() => {
    throw new Error("The server did not answer. Try again.");
  });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.detail ?? `The server rejected the request: status ${response.status}.`);
  if (framed) secret = answer.session;
}

/** Lets go of the session, here and in the browser's other tabs. Rejects where the server does not answer, or refuses. */
export async function signOut() {
  const response = await fetch(at("logout"), { method: "POST", headers: credentials(), signal: AbortSignal.timeout(15_000) });
  // Who is not known any more is out already.
  if (!response.ok && response.status !== 401) throw new Error(`The server rejected the request: status ${response.status}.`);
  secret = null;
}

/** Signs in with the code in the address, if there is one, and takes it out of there. Never rejects. */
export async function comeIn() {
  const [path = "", query = ""] = location.hash.split("?");
  const options = new URLSearchParams(query);
  const code = options.get("code");
  if (code === null) return;
  options.delete("code");
  history.replaceState(null, "", (path || "#/") + (options.size ? `?${options}` : ""));
  // Whether it was good shows in the first call, which may be let in by a cookie too.
  await signIn(code).catch(() => {});
}

/** The code in a link, as `ampmon token link` prints it, or what else was given. @param {string} given */
export function keyIn(given) {
  const words = given.trim();
  return /[?&]code=([\w-]+)/.exec(words)?.[1] ?? words;
}
