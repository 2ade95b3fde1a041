// The field that chooses one rank of a run with several.

import { select } from "./dom.js";
import { count } from "./format.js";

/** At most this many updates of a single rank are drawn, the newest of the range. */
export const ALONE = 32_768;

/** @param {Summary} run @param {View} view @param {(rank: string | null) => void} onRank */
export function rankField(run, view, onRank) {
  const ranks = ranksOf(run);
  const hidden = ranks.length < 2 && view.rank === null;
  return select({ label: "Rank", options: options(ranks, run.updates), chosen: view.rank ?? "", hidden, onChoose: (rank) => onRank(rank || null) });
}

/** @param {Pick<Summary, "streams">} run */
export function ranksOf({ streams }) {
  return [...new Set(streams.map((stream) => stream.rank))].sort((a, b) => a - b);
}

/** @type {(ranks: number[], updates: number) => [string, string][]} */
export function options(ranks, updates) {
  const most = updates > ALONE ? `, its newest ${count(ALONE)} steps` : "";
  return [["", "all ranks"], ...ranks.map((rank) => /** @type {[string, string]} */ ([String(rank), `rank ${count(rank)}${most}`]))];
}
