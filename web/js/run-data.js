// Data of runs beside their summaries (sparklines and losses), fetched for rows on the screen when a run has changed.

import { get } from "./api.js";
import { html, nothing } from "./lit-html.js";
import { paced } from "./pace.js";

const ASK_MS = 2000;
const MOST = 100;

/** @template Datum */
export class RunDataCache {
  /** The data of each run, and its version then. @type {Map<string, {version: number, told: Datum | null}>} */
  #held = new Map();
  /** @type {Summary[]} */
  #wanted = [];
  #ask = paced(() => this.#read(), ASK_MS);

  /** @param {string} path where the server has the data of a list of runs @param {() => void} onNews */
  constructor(path, onNews) {
    this.path = path;
    this.onNews = onNews;
  }

  /** Set the runs that are on the screen. @param {Summary[]} runs */
  setRuns(runs) {
    this.#wanted = runs;
    if (this.#stale().length) this.#ask();
  }

  /** @param {string} run @returns {Datum | null} */
  dataOf(run) {
    return this.#held.get(run)?.told ?? null;
  }

  close() {
    this.#ask.stop();
  }

  #stale() {
    return this.#wanted.filter((run) => this.#held.get(run.run_id)?.version !== run.version).slice(0, MOST);
  }

  async #read() {
    const runs = this.#stale();
    if (!runs.length || document.hidden) return;
    try {
      const answer = await get(`${this.path}?runs=${runs.map((run) => run.run_id).join(",")}`);
      const told = /** @type {Record<string, Datum | null>} */ (answer);
      for (const { run_id, version } of runs) this.#held.set(run_id, { version, told: told[run_id] ?? null });
      this.onNews();
    } catch {
      // The list itself reports that the server does not answer. A later call tries again.
    }
  }
}

/** @param {Sparkline | null} line */
export function sparkline(line) {
  const words = line ? `Scale ${line.words}` : nothing;
  return html`<span class="sparkline" title=${words}>
    <svg viewBox="0 0 96 24" role="img" class="spark" aria-label=${line ? words : "Scale: no history yet"}>
      <path class="line" d=${line?.path ?? nothing}></path>
      <path class="skips" d=${line?.skips || nothing}></path>
    </svg>
  </span>`;
}
