// Which rank of a run is looked at by itself, where it has several. Knows no chart.

import { h, offer } from "./dom.js";
import { count } from "./format.js";

/** @import { Summary, View } from "../types/page.js" */

/** So many updates of one rank alone are drawn, the newest of what is shown. */
export const ALONE = 32_768;

export class Ranks {
  /** @param {(rank: string | null) => void} onRank */
  constructor(onRank) {
    this.element = h("select", { "aria-label": "Rank", hidden: true, onchange: () => onRank(this.element.value || null) });
  }

  /**
   * @param {Summary} run
   * @param {View} view
   */
  update(run, view) {
    const ranks = ranksOf(run);
    this.element.hidden = ranks.length < 2 && view.rank === null;
    offer(this.element, options(ranks, run.updates), view.rank ?? "");
  }
}

/**
 * The ranks of a run, in order.
 * @param {Pick<Summary, "streams">} run
 */
export function ranksOf({ streams }) {
  return [...new Set(streams.map((stream) => stream.rank))].sort((a, b) => a - b);
}

/**
 * All ranks together, then each, with what is drawn of it.
 * @param {number[]} ranks
 * @param {number} updates
 * @returns {[string, string][]}
 */
export function options(ranks, updates) {
  const most = updates > ALONE ? `, its newest ${count(ALONE)} steps` : "";
  return [["", "all ranks"], ...ranks.map((rank) => /** @type {[string, string]} */ ([String(rank), `rank ${count(rank)}${most}`]))];
}
