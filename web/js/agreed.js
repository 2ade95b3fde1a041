// Rows of the ledger of skips that are one skip: found by several ranks of a run. Pure.

import { count } from "./format.js";

/** @import { Skip } from "../types/page.js" */

/** A skip of one optimizer at one step, and the ranks that made it. @typedef {Skip & {ranks: number[]}} SharedSkip */

/**
 * Skips of the same step, scaler and optimizer put together, in the order of the first of each. What is said of one is
 * what the lowest rank that names a culprit says: of those whose own loss was not finite, if there are any.
 * @param {Skip[]} skips
 * @param {boolean} more whether others follow: those of the last step, which may be of it too, are left out until then
 * @returns {SharedSkip[]}
 */
export function together(skips, more) {
  /** @type {Map<string, Skip[]>} */
  const groups = new Map();
  const cut = more ? skips.at(-1)?.step : undefined;
  for (const skip of skips) {
    if (skip.step === cut) break;
    const key = keyOf(skip);
    groups.set(key, [...(groups.get(key) ?? []), skip]);
  }
  return [...groups.values()].map((group) => {
    const inOrder = [...group].sort((a, b) => precedence(b) - precedence(a) || a.rank - b.rank);
    const ranks = [...new Set(group.map((skip) => skip.rank))].sort((a, b) => a - b);
    return { .../** @type {Skip} */ (inOrder[0]), ranks };
  });
}

/** @param {Skip} skip */
function precedence({ loss, culprits }) {
  return 2 * Number(loss === "not_finite") + Number(culprits.length > 0);
}

/** @param {Skip} skip */
export function keyOf({ step, scaler, optimizer }) {
  return JSON.stringify([step, scaler, optimizer]); // names may hold anything that is printable
}

/**
 * Which ranks skipped; nothing of a run with one.
 * @param {number[]} ranks
 * @param {number} all how many the run has
 */
export function ranksWords(ranks, all) {
  if (all < 2) return "";
  if (ranks.length >= all) return `all ${count(all)} ranks`;
  const named = ranks.slice(0, 8).map(count).join(", ") + (ranks.length > 8 ? ", …" : "");
  return `${ranks.length === 1 ? "rank" : "ranks"} ${named} of ${count(all)}`;
}
