// Calls to the server: its addresses, the browser's session, an ETag cache, and errors.

// The server's root, whatever path a proxy gives it: this module is at js/VERSION/server.js below it.
const ROOT = new URL("../..", import.meta.url);
const HELD_MAX = 64;
const WAIT_MS = 15_000;

/** The server answered with an error. */
export class Refused extends Error {
  /** @param {Problem} problem */
  constructor(problem) {
    super(problem.detail || problem.title);
    this.status = problem.status;
    /** The field of the request that is at fault, if the server names one. */
    this.field = problem.field ?? null;
  }
}

/** The session is missing or has expired. The page keeps its content and waits for a sign-in. */
export class SignedOut extends Error {}

/** The session is a cookie, or in a frame, where third-party cookies are blocked, a secret in memory.
 * @type {string | null} */
let secret = null;
let onSignedOut = () => {};
/** @type {Map<string, {etag: string, value: unknown}>} the newest last */
const held = new Map();

/** The URL of a path on the server. @param {string} path without a leading slash */
export const urlOf = (path) => new URL(path, ROOT).href;

/** A run's path under /api/v1. @param {string} run */
export const pathOf = (run) => `/runs/${encodeURIComponent(run)}`;

/** What was thrown, in words. @param {unknown} error */
export const wordsOf = (error) => error instanceof Error ? error.message : String(error);

/** A refusal in words. Other errors are rethrown. @param {unknown} error */
export function refusalOf(error) {
  if (!(error instanceof Refused)) throw error;
  return `The server could not answer: ${error.message}`;
}

/** GET a path under /api/v1: the same object as before if unchanged. @type {(path: string, signal?: AbortSignal) => Promise<unknown>} */
export async function get(path, signal) {
  const before = held.get(path);
  const ended = signal && { signal: AbortSignal.any([signal, AbortSignal.timeout(WAIT_MS)]) };
  const response = await call(path, { headers: before ? { "If-None-Match": before.etag } : {}, ...ended });
  if (response.status === 304 && before) {
    await response.text(); // The body is empty, but the request stays open until it is read.
    return before.value;
  }
  const value = await read(response);
  keep(path, response.headers.get("ETag"), value);
  return value;
}

/** Change something at a path under /api/v1. Return the JSON answer, or null if there is none (204).
 * @param {"POST" | "PATCH" | "DELETE"} method @param {string} path @param {object} [body] @returns {Promise<unknown>} */
export async function send(method, path, body) {
  const options = body ? { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) } : {};
  const response = await call(path, { method, ...options });
  return response.status === 204 ? null : read(response);
}

/** Call a path under /api/v1 and return a good response or a 304. A `signal` replaces the timeout of 15 s.
 * @param {string} path @param {RequestInit & {headers?: Record<string, string>}} options */
export async function call(path, { headers = {}, ...options }) {
  const own = { signal: AbortSignal.timeout(WAIT_MS), ...options, headers: { ...headers, ...credentials() } };
  const response = await fetch(urlOf(`api/v1${path}`), { ...own, cache: "no-store" }).catch((error) => {
    throw new Error(String(error));
  });
  if (response.ok || response.status === 304) return response;
  if (response.status !== 401) throw new Refused(await problem(response));
  onSignedOut();
  throw new SignedOut("not signed in");
}

/** @param {() => void} listener called whenever a call is refused for lack of a session */
export function whenSignedOut(listener) {
  onSignedOut = listener;
}

/** Trade a one-time link, its code or the token for a session. Rejects with a message to show. @param {string} given */
export async function signIn(given) {
  const memory = window.parent !== window;
  const headers = { "Content-Type": "application/json" };
  const response = await post("login", { headers, body: JSON.stringify({ key: loginKey(given), memory }) });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.detail ?? `The server rejected the request: status ${response.status}.`);
  if (memory) secret = answer.session;
}

/** End the session, here and in the browser's other tabs. Rejects if the server refuses or does not answer. */
export async function signOut() {
  const response = await post("logout", { headers: credentials() });
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
  return /[?&]code=([\w-]+(?:\.[\w-]+)*)/.exec(words)?.[1] ?? words;
}

/** Rejects with a message to show. @param {string} path outside the API @param {RequestInit} options */
function post(path, options) {
  return fetch(urlOf(path), { method: "POST", signal: AbortSignal.timeout(WAIT_MS), ...options }).catch(() => {
    throw new Error("The server did not answer. Try again.");
  });
}

/** @returns {Record<string, string>} */
const credentials = () => secret === null ? {} : { Authorization: `Bearer ${secret}` };

/** @param {Response} response @returns {Promise<unknown>} */
function read(response) {
  return response.json().catch(() => {
    throw new Error("the server's response was incomplete");
  });
}

/** @param {Response} response @returns {Promise<Problem>} */
async function problem(response) {
  const body = await response.json().catch(() => ({}));
  return { title: response.statusText || `status ${response.status}`, status: response.status, ...body };
}

/** @param {string} path @param {string | null} etag @param {unknown} value */
function keep(path, etag, value) {
  held.delete(path);
  if (etag === null) return;
  held.set(path, { etag, value });
  const [oldest] = held.keys();
  if (held.size > HELD_MAX && oldest !== undefined) held.delete(oldest);
}
