// Two to twenty runs side by side: their charts on one axis, how far they are from a baseline, results and configuration.

import { get } from "./api.js";
import { badge } from "./badge.js";
import { Charts } from "./charts.js";
import { AddRun } from "./compare-add.js";
import { Facts } from "./compare-facts.js";
import { h } from "./dom.js";
import { count, plural } from "./format.js";
import { html, nothing, render } from "./lit-html.js";
import { Notices } from "./notices.js";
import { paced } from "./pace.js";

/** @import { Address, Summary, View } from "../types/page.js" */
/** @import { Command } from "./keyboard.js" */
/** @import { Line } from "./compare-facts.js" */

/** @typedef {{words: string, side: "above" | "below" | null}} Distance */
/**
 * @typedef {{runs: (Summary | null)[], baseline: string | null, distances: (Distance | null)[], outcome: Line[], made: Line[],
 *   own_steps: boolean}} Comparison
 */

export const MOST = 20;
const FACTS_MS = 5000;
const CHARTS = ["logged", "scale", "skips", "fate"];
/** As charts/together.py has them, for lines of 32 pixels. */
const COLOURS = 8;
const DASHES = ["", "9 5", "2 4", "9 4 2 4", "15 5", "15 4 2 4", "8 3 2 3", "2 8"];

export class Compare {
  #runs = h("ul", { class: "compared" });
  #notices = new Notices();
  #outcome = new Facts("Results");
  #made = new Facts("Configuration", "differs");
  /** @type {Comparison | null} */
  #told = null;
  #read = paced(() => this.#facts(), FACTS_MS);

  /**
   * @param {string[]} runs
   * @param {View} view
   * @param {{onView: (runs: string[], view: View) => void, onTrouble: () => void}} listener
   */
  constructor(runs, view, listener) {
    this.asked = [...new Set(runs)];
    this.runs = this.asked.slice(0, MOST);
    this.follows = this.runs;
    this.listener = listener;
    const among = `runs=${this.runs.map(encodeURIComponent).join(",")}`;
    this.among = among;
    this.charts = new Charts(
      "",
      view,
      { onView: (next) => listener.onView(this.asked, next), onTrouble: listener.onTrouble },
      { charts: CHARTS, at: (name) => `/compare/figures/${name}?${among}&` },
    );
    this.charts.within(this.charts.element);
    const enough = this.runs.length > 1;
    this.title = enough ? `Compare ${plural(this.runs.length, "run")}` : "Compare runs";
    const add = new AddRun(this.asked, { onAdd: (run) => listener.onView([...this.asked, run], this.charts.view), onTrouble: listener.onTrouble });
    add.element.hidden = this.asked.length >= MOST;
    this.element = h("article", { class: "run compare" }, h("header", {}, h("h1", {}, this.title), add.element), this.#notices.element, this.#runs);
    if (enough) this.element.append(this.charts.element, this.#outcome.element, this.#made.element);
    else this.element.append(h("p", { class: "empty" }, "Add runs here, or select two to twenty in ", h("a", { href: "#/" }, "the list"), " to compare them."));
    this.#notices.show(this.#warnings([]));
  }

  /** Where the facts are: they are of the baseline and of the logged value that the reader chose. */
  get path() {
    const { baseline, name } = this.charts.view.choices;
    return `/compare?${this.among}&${new URLSearchParams({ ...(baseline && { baseline }), ...(name && { name }) })}`;
  }

  /** Asks for what has changed. Rejects where the server does not answer. */
  async refresh() {
    if (this.runs.length < 2) return;
    if (this.#told === null) await this.#fetch();
    else this.#read();
    this.charts.refresh();
  }

  tick() {}

  /** @param {Address} address */
  look(address) {
    if (address.page !== "compare" || address.runs.join() !== this.asked.join()) return false;
    const before = this.path;
    this.charts.look(address.view);
    if (this.path !== before) void this.#facts();
    return true;
  }

  /** @param {Command} command */
  act(command) {
    // Runs end where each ends: there is no newest stretch of them all to follow.
    return command !== "follow" && command !== "pause" && this.charts.act(command);
  }

  recolour() {
    void this.charts.recolour();
  }

  close() {
    this.#read.stop();
    this.charts.close();
  }

  async #facts() {
    await this.#fetch().catch(() => this.listener.onTrouble());
  }

  async #fetch() {
    const path = this.path;
    const told = /** @type {Comparison} */ (await get(path));
    if (told === this.#told || path !== this.path) return;
    this.#told = told;
    render(told.runs.map((run, place) => this.#run(told, run, place)), this.#runs);
    this.#notices.show(this.#warnings(told.runs));
    this.charts.offerOwnSteps(told.own_steps);
    const names = told.runs.map((run) => run?.name ?? "gone");
    this.#outcome.update(names, told.outcome);
    this.#made.update(names, told.made);
  }

  /**
   * @param {(Summary | null)[]} runs
   * @returns {string[]}
   */
  #warnings(runs) {
    const gone = runs.filter((run) => run === null).length;
    const more = this.asked.length - this.runs.length;
    return [
      more > 0 ? `At most ${MOST} runs can be compared: the first ${MOST} of ${count(this.asked.length)} are shown.` : "",
      gone > 0 ? `${plural(gone, "run is", "runs are")} not there: deleted, or never reported here. The others are compared.` : "",
    ].filter(Boolean);
  }

  /**
   * @param {Comparison} told
   * @param {Summary | null} run
   * @param {number} place
   */
  #run(told, run, place) {
    const far = told.distances[place];
    const id = this.runs[place] ?? "";
    const name = run?.name ?? "This run is not there";
    const whose = run ? `${run.project} · ${run.owner}` : "";
    const baseline = run !== null && run.run_id === told.baseline;
    const words = baseline ? whose : (far?.words ?? whose);
    const leave = () => this.listener.onView(this.asked.filter((each) => each !== id), this.charts.view);
    return html`<li>
      ${sample(place)}
      <a dir="auto" title=${run ? `${name} · ${whose}` : nothing} href=${run ? `#/runs/${encodeURIComponent(id)}` : nothing}>${name}</a>
      <span title=${words} data-side=${far?.side ?? nothing}>${words}</span>
      ${run && badge(run.status)}
      <button type="button" class="quiet" ?hidden=${run === null} aria-pressed=${baseline} aria-label=${`Baseline: ${name}`} @click=${() => this.#choose(id)}>Baseline</button>
      <button type="button" class="quiet" aria-label=${`Remove ${name}`} @click=${leave}>Remove</button>
    </li>`;
  }

  /** Makes a run the baseline, or, where it was chosen, leaves that to the tag. @param {string} run */
  #choose(run) {
    const { view } = this.charts;
    const { baseline, ...others } = view.choices;
    this.listener.onView(this.asked, { ...view, choices: baseline === run ? others : { ...others, baseline: run } });
  }
}

/**
 * The line by which the charts know a run.
 * @param {number} place
 */
function sample(place) {
  const dash = DASHES[(place + Math.floor(place / COLOURS)) % DASHES.length];
  return html`<svg viewBox="0 0 32 8" class=${`sample run-${(place % COLOURS) + 1}`} aria-hidden="true"><path d="M0 4H32" stroke-dasharray=${dash}></path></svg>`;
}
