// What is above a run's charts: the numbers of its summary, with units and definitions, and the choice of a rank.

import { copy } from "./browser.js";
import { html, select, term } from "./dom.js";
import { ago, bits, count, duration, percent, plural, powerOfTwo, revived, within } from "./format.js";
import { NUMBERS } from "./words.js";

/** @type {RunNumber[]} */
const TRAINING = [
  { key: "scale", name: "Scale now", exact: (run) => revived(run.scale, run.scale_kind), value: (run) => run.disabled ? "off" : powerOfTwo(revived(run.scale, run.scale_kind)) },
  {
    key: "skipped",
    name: "Skipped",
    exact: (run) => run.skipped,
    value: (run) => `${count(run.skipped)} of ${count(run.updates)}`,
    more: (run) => (run.skip_rate === null ? "" : percent(run.skip_rate)),
  },
  {
    key: "underflow",
    name: "Underflow now",
    exact: (run) => run.subnormal_fraction,
    value: (run) => within(run.subnormal_fraction, run.subnormal_fraction_error),
    more: (run) => (run.subnormal_fraction === null ? "" : `subnormal, ${within(run.zero_fraction, run.zero_fraction_error)} zero`),
  },
  {
    key: "headroom",
    name: "Headroom",
    exact: (run) => revived(run.headroom_bits, run.headroom_bits_kind),
    value: (run) => bits(revived(run.headroom_bits, run.headroom_bits_kind)),
    more: (run) => (run.headroom_bits === null ? "" : "at most"),
  },
];

/** @type {RunNumber[]} */
const RECORDING = [
  {
    key: "records",
    name: "Records",
    exact: (run) => run.records,
    value: (run) => `${count(run.records)} of ${count(run.records + run.lost_records)}`,
    more: (run) => `${count(run.lost_records)} lost`,
  },
  {
    key: "sampled",
    name: "Gradients sampled",
    exact: (run) => run.sampled_updates,
    value: (run) => plural(run.sampled_updates, "step"),
    more: intervalWords,
  },
  {
    key: "overhead",
    name: "Overhead",
    exact: (run) => run.overhead,
    value: (run) => percent(run.overhead),
    more: (run) => [run.overhead === null ? "" : "of training time", budgetWords(run)].filter(Boolean).join(", "),
  },
  {
    key: "newest",
    name: "Last update",
    exact: (run) => run.last_time && new Date(run.last_time / 1000).toISOString(),
    value: (run) => (run.last_time === null || run.updates === 0 ? "none yet" : ago(Date.now() / 1000 - run.last_time / 1e6)),
    more: (run) => (run.last_step === null ? "" : `step ${count(run.last_step)}`),
  },
  {
    key: "ranks",
    name: "Processes",
    exact: (run) => run.ranks,
    value: (run) => plural(run.ranks, "rank"),
    more: (run) => plural(run.attempts, "start"),
  },
];

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

/** The numbers of the training, left empty before the run is known. @param {Summary | null} run */
export function tiles(run) {
  return html`<dl class="numbers">${TRAINING.map((readout) => cell(readout, run))}</dl>`;
}

/** A button with the state of the recording. @type {(run: Summary | null, onOpen: () => void) => TemplateResult} */
export function health(run, onOpen) {
  return html`<button type="button" class="quiet health" ?data-lost=${run?.lost_records} @click=${onOpen}>${run && healthWords(run)}</button>`;
}

/** The numbers of the recording. @param {Summary | null} run */
export function recording(run) {
  return html`<section class="recording" aria-label="Recording" ?data-lost=${run?.lost_records}>
    <dl class="numbers">${RECORDING.map((readout) => cell(readout, run))}</dl>
    <p class="caption">${run && budgetAdvice(run)}</p>
  </section>`;
}

/** @type {(readout: RunNumber, run: Summary | null) => TemplateResult} */
function cell({ key, name, value, exact, more }, run) {
  const number = run && exact(run);
  const again = () => void copy(String(number));
  // No white space between the elements: they are in one line.
  return html`<div data-number=${key}>
    <dt>${term(name, NUMBERS[key].definition, NUMBERS[key].section)}</dt
    ><dd><button type="button" title="Copy it with all digits" ?disabled=${run && number === null} @click=${again}>${run && value(run)}</button></dd
    ><dd class="more">${run && more?.(run)}</dd>
  </div>`;
}

/** @param {Summary} run */
export function elapsed(run) {
  const running = run.status === "running" ? Date.now() / 1000 - run.started / 1e6 : null;
  return duration(running ?? run.elapsed ?? 0);
}

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
