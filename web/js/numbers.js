// What is above a run's charts: the numbers of its summary, with units and definitions, and the choice of a rank.

import { copy } from "./browser.js";
import { html, select, term } from "./dom.js";
import { ago, count, duration } from "./format.js";
import { NUMBERS, TERMS } from "./words.js";

/** At most this many updates of a single rank are drawn, the newest of the range. */
export const ALONE = 32_768;

/** The numbers of a run's training or of its recording, left empty before the run is known.
 * @type {(section: "training" | "recording", run: Detail | null) => TemplateResult} */
export function tiles(section, run) {
  const shown = Object.entries(NUMBERS[section] ?? {}).map(([key, name]) => tile(key, name, run?.numbers[key]));
  return html`<dl class="numbers">${shown}</dl>`;
}

/** @type {(key: string, name: string, number?: RunNumber) => TemplateResult} */
function tile(key, name, number) {
  const age = number?.since == null ? number?.value : ago(Date.now() / 1000 - number.since / 1e6);
  const again = () => void copy(String(number?.exact));
  // No white space between the elements: they are in one line.
  return html`<div data-number=${key}>
    <dt>${term(name, TERMS[key])}</dt
    ><dd><button type="button" title="Copy it with all digits" ?disabled=${number?.exact === null} @click=${again}>${age}</button></dd
    ><dd class="more">${number?.more}</dd>
  </div>`;
}

/** A button with the state of the recording. @type {(run: Detail | null, onOpen: () => void) => TemplateResult} */
export function health(run, onOpen) {
  return html`<button type="button" class="quiet health" ?data-lost=${run?.lost_records} @click=${onOpen}>${run?.recording}</button>`;
}

/** The numbers of the recording. @param {Detail | null} run */
export function recording(run) {
  return html`<section class="recording" aria-label="Recording" ?data-lost=${run?.lost_records}>
    ${tiles("recording", run)}
    <p class="caption">${run?.advice}</p>
  </section>`;
}

/** @param {Summary} run */
export function elapsed(run) {
  const running = run.status === "running" ? Date.now() / 1000 - run.started / 1e6 : null;
  return duration(running ?? run.elapsed ?? 0);
}

/** The field that chooses one rank of a run with several. @param {Summary} run @param {View} view @param {(rank: string | null) => void} onRank */
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
