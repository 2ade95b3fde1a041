// Reads from the server: one place for addresses, tags of what is held already, and what can go wrong.

/** @import { Problem } from "../types/page.js" */

const HELD_MAX = 64;

/** The server answered, and not with what was asked for. */
export class Refused extends Error {
  /** @param {Problem} problem */
  constructor(problem) {
    super(problem.detail || problem.title);
    this.status = problem.status;
  }
}

/** The server did not answer. */
export class Unreachable extends Error {}

/** @type {Map<string, {etag: string, value: unknown}>} the newest last */
const held = new Map();

/**
 * What the server has at a path under /api/v1: the same object as before, where that has not changed.
 * @param {string} path
 * @returns {Promise<unknown>}
 */
export async function get(path) {
  const before = held.get(path);
  const response = await ask(`/api/v1${path}`, before ? { "If-None-Match": before.etag } : {});
  if (response.status === 304 && before) return before.value;
  if (!response.ok) throw new Refused(await problem(response));
  const value = await response.json().catch(() => {
    throw new Unreachable("the answer broke off");
  });
  keep(path, response.headers.get("ETag"), value);
  return value;
}

/**
 * @param {string} address
 * @param {Record<string, string>} headers
 */
async function ask(address, headers) {
  try {
    return await fetch(address, { headers, cache: "no-store", signal: AbortSignal.timeout(15_000) });
  } catch (error) {
    throw new Unreachable(String(error));
  }
}

/** @param {Response} response @returns {Promise<Problem>} */
async function problem(response) {
  const plain = { title: response.statusText || `status ${response.status}`, status: response.status };
  try {
    return { ...plain, ...(await response.json()) };
  } catch {
    return plain;
  }
}

/**
 * @param {string} path
 * @param {string | null} etag
 * @param {unknown} value
 */
function keep(path, etag, value) {
  held.delete(path);
  if (etag === null) return;
  held.set(path, { etag, value });
  const [oldest] = held.keys();
  if (held.size > HELD_MAX && oldest !== undefined) held.delete(oldest);
}
