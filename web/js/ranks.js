// Which rank of a run is looked at by itself, where it has several. Knows no chart.

import { select } from "./dom.js";
import { count } from "./format.js";

/** @import { Summary, View } from "../types/page.js" */

/** So many updates of one rank alone are drawn, the newest of what is shown. */
export const ALONE = 32_768;

/** @param {Summary} run @param {View} view @param {(rank: string | null) => void} onRank */
export function rankField(run, view, onRank) {
  const ranks = ranksOf(run);
  const hidden = ranks.length < 2 && view.rank === null;
  return select({ label: "Rank", options: options(ranks, run.updates), chosen: view.rank ?? "", hidden, onChoose: (rank) => onRank(rank || null) });
}

/** The ranks of a run, in order. @param {Pick<Summary, "streams">} run */
export function ranksOf({ streams }) {
  return [...new Set(streams.map((stream) => stream.rank))].sort((a, b) => a - b);
}

/**
 * All ranks together, then each, with what is drawn of it.
 * @type {(ranks: number[], updates: number) => [string, string][]}
 */
export function options(ranks, updates) {
  const most = updates > ALONE ? `, its newest ${count(ALONE)} steps` : "";
  return [["", "all ranks"], ...ranks.map((rank) => /** @type {[string, string]} */ ([String(rank), `rank ${count(rank)}${most}`]))];
}
