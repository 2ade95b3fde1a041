// What is above a run's charts: the numbers of its summary, with units and definitions, and the choice of a rank.

import { copy } from "./browser.js";
import { html, select, term } from "./dom.js";
import { ago, bits, count, duration, percent, plural, powerOfTwo, revived, within } from "./format.js";
import { TERMS } from "./words.js";

/** At most this many updates of a single rank are drawn, the newest of the range. */
export const ALONE = 32_768;

/** Before the run is known, only the names of its numbers are shown. */
const UNKNOWN = /** @type {Summary} */ ({});

/** @param {Summary} run @returns {RunNumber[]} */
function training(run) {
  const scale = revived(run.scale, run.scale_kind);
  const headroom = revived(run.headroom_bits, run.headroom_bits_kind);
  const subnormal = within(run.subnormal_fraction, run.subnormal_fraction_error);
  const zero = `subnormal, ${within(run.zero_fraction, run.zero_fraction_error)} zero`;
  const skipped = `${count(run.skipped)} of ${count(run.updates)}`;
  return [
    { key: "scale", name: "Scale now", exact: scale, value: run.disabled ? "off" : powerOfTwo(scale) },
    { key: "skipped", name: "Skipped", exact: run.skipped, value: skipped, more: run.skip_rate !== null && percent(run.skip_rate) },
    { key: "underflow", name: "Underflow now", exact: run.subnormal_fraction, value: subnormal, more: run.subnormal_fraction !== null && zero },
    { key: "headroom", name: "Headroom", exact: headroom, value: bits(headroom), more: run.headroom_bits !== null && "at most" },
  ];
}

/** @param {Summary} run @returns {RunNumber[]} */
function recorded(run) {
  const { last_time: time, last_step: step, overhead } = run;
  const records = `${count(run.records)} of ${count(run.records + run.lost_records)}`;
  const cost = [overhead === null ? "" : "of training time", budgetWords(run)].filter(Boolean).join(", ");
  const newest = time === null || run.updates === 0 ? "none yet" : ago(Date.now() / 1000 - time / 1e6);
  return [
    { key: "records", name: "Records", exact: run.records, value: records, more: `${count(run.lost_records)} lost` },
    { key: "sampled", name: "Gradients sampled", exact: run.sampled_updates, value: plural(run.sampled_updates, "step"), more: intervalWords(run) },
    { key: "overhead", name: "Overhead", exact: overhead, value: percent(overhead), more: cost },
    { key: "newest", name: "Last update", exact: time && new Date(time / 1000).toISOString(), value: newest, more: step !== null && `step ${count(step)}` },
    { key: "ranks", name: "Processes", exact: run.ranks, value: plural(run.ranks, "rank"), more: plural(run.attempts, "start") },
  ];
}

/** How often gradients are sampled now. @param {Summary} run */
export function intervalWords(run) {
  if (run.sampling_interval === null) return "";
  return run.sampling_interval === 1 ? "every step" : `every ${count(run.sampling_interval)} steps`;
}

/** @param {Summary} run */
export function budgetWords(run) {
  if (run.budget === null) return "";
  const budget = percent(run.budget);
  return run.over_budget ? `over the budget of ${budget} at the recent rate` : `budget ${budget}`;
}

/** The state of the recording: "Recording, 0 lost, 0.8 % of training time". @param {Summary} run */
export function healthWords(run) {
  const cost = run.overhead === null ? "" : `, ${percent(run.overhead)} of training time`;
  return `${run.status === "running" ? "Recording" : "Recorded"}, ${count(run.lost_records)} lost${cost}`;
}

/** Advice if the monitor exceeds its budget, else "". @param {Summary} run */
export function budgetAdvice(run) {
  if (!run.over_budget || run.budget === null) return "";
  return (
    `Monitoring now exceeds its budget of ${percent(run.budget)} of training time, even at the lowest sampling rate: ` +
    `one step in ${count(run.sampling_interval ?? 0)}, and after each change of the scale. ` +
    "Lower Config(sample=) to make samples cheaper on a CPU, or raise Config(budget=)."
  );
}

/** The numbers of the training. @param {Summary | null} run */
export function tiles(run) {
  return html`<dl class="numbers">${training(run ?? UNKNOWN).map((number) => tile(number, run))}</dl>`;
}

/** A button with the state of the recording. @type {(run: Summary | null, onOpen: () => void) => TemplateResult} */
export function health(run, onOpen) {
  return html`<button type="button" class="quiet health" ?data-lost=${run?.lost_records} @click=${onOpen}>${run && healthWords(run)}</button>`;
}

/** The numbers of the recording. @param {Summary | null} run */
export function recording(run) {
  return html`<section class="recording" aria-label="Recording" ?data-lost=${run?.lost_records}>
    <dl class="numbers">${recorded(run ?? UNKNOWN).map((number) => tile(number, run))}</dl>
    <p class="caption">${run && budgetAdvice(run)}</p>
  </section>`;
}

/** @type {(number: RunNumber, run: Summary | null) => TemplateResult} */
function tile({ key, name, value, exact, more }, run) {
  const again = () => void copy(String(exact));
  // No white space between the elements: they are in one line.
  return html`<div data-number=${key}>
    <dt>${term(name, TERMS[key])}</dt
    ><dd><button type="button" title="Copy it with all digits" ?disabled=${run && exact === null} @click=${again}>${run && value}</button></dd
    ><dd class="more">${(run && more) || ""}</dd>
  </div>`;
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
