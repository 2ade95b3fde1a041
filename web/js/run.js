// The page of one run: what is wrong with it, its numbers, the charts that tell most, and the rest in tabs; kept up to
// date while it trains.

import { Refused, get } from "./api.js";
import { badge } from "./badge.js";
import { Charts } from "./charts.js";
import { h, offer, say } from "./dom.js";
import { Drawer } from "./drawer.js";
import { Findings } from "./findings.js";
import { moment } from "./format.js";
import { FormatWindow } from "./format-window.js";
import { eventLedger, skipLedger } from "./ledger.js";
import { html, render } from "./lit-html.js";
import { Skips } from "./nearest.js";
import { Notices } from "./notices.js";
import { Numbers, elapsed } from "./numbers.js";
import { paced } from "./pace.js";
import { Parameters } from "./parameters.js";
import { Ranks } from "./ranks.js";
import { RunActions } from "./run-actions.js";
import { toast } from "./toast.js";
import { Simulate } from "./simulate.js";
import { Tabs } from "./tabs.js";
import { WhatIf } from "./whatif.js";
import { mayChange } from "./who.js";

/** @import { Command } from "./keyboard.js" */
/** @import { Advance } from "./live.js" */
/** @import { Address, Detail, Finding, LoggedName, Range, Summary, View } from "../types/page.js" */

const DRAWER_MS = 1000;
const TABLES_MS = 2000;
const FINDINGS_MS = 5000;

export class Run {
  #name = h("h1", { dir: "auto" }, "…");
  #state = h("p", { role: "status", class: "state" });
  #about = h("p", { class: "about" });
  #actions = new RunActions(() => void this.refresh().catch(() => {}));
  #ranks = new Ranks((rank) => this.onView({ ...this.charts.view, rank }));
  #streams = h("select", { "aria-label": "Scaler", hidden: true, onchange: () => this.#choose() });
  #description = h("p", { class: "description", dir: "auto", hidden: true });
  #notices = new Notices();
  #numbers = new Numbers(() => this.#open("system"));
  /** @type {Detail | null} */
  #run = null;
  #ownSteps = false;
  #judged = "";

  /**
   * @param {string} id
   * @param {View} view
   * @param {{onView: (view: View) => void, onTrouble: () => void, onGone: () => void}} listener
   */
  constructor(id, view, { onView, onTrouble, onGone }) {
    this.id = id;
    this.follows = [id];
    this.onView = onView;
    this.onTrouble = onTrouble;
    this.onGone = onGone;
    const page = { view: () => this.charts.view, onView: (/** @type {View} */ next) => this.#show(next) };
    this.skips = skipLedger(id, page);
    this.events = eventLedger(id, page);
    const look = (/** @type {Finding} */ finding, /** @type {Range} */ { start, stop }) => this.#lookAt(finding.scaler, start, stop);
    this.findings = new Findings(id, look, () => void this.refresh().catch(() => this.onTrouble()));
    this.parameters = new Parameters(id, page.view, page.onView);
    this.nearest = new Skips(id);
    this.readTables = paced(() => this.#tables(), TABLES_MS);
    this.readFindings = paced(() => this.#diagnosis(), FINDINGS_MS);
    this.readDrawer = paced(() => this.#refreshDrawer(), DRAWER_MS);
    this.charts = new Charts(id, view, { onView: (next) => this.#show(next), onTrouble });
    const chart = (/** @type {string} */ name) => this.charts.panel(name).element;
    this.rankCharts = chart("ranks");
    const [whatif, simulated] = [chart("whatif"), chart("simulated")];
    const [exponents, tried] = [chart("exponents"), new FormatWindow(this.charts)];
    this.drawer = new Drawer(this.charts, onView);
    const [scales, policies] = [new WhatIf(this.charts, onView), new Simulate(id, this.charts, onView)];
    this.scales = scales;
    this.tabs = new Tabs(
      "More of this run",
      [
        ["gradients", "Gradients by layer", [chart("parameters"), this.drawer.element, chart("norm"), this.parameters.element]],
        ["activations", "Activations", [chart("activations")]],
        ["whatif", "What-if and simulator", [whatif, scales.element, simulated, policies.element]],
        ["skips", "Skipped steps", [this.skips.element]],
        ["events", "Events", [this.events.element]],
        ["system", "System", [this.#numbers.recording, this.rankCharts, chart("timing")]],
      ],
      (name) => this.#open(name),
    );
    this.element = h(
      "article",
      { class: "run" },
      h("header", {}, this.#name, this.#state, this.#numbers.health, this.#streams, this.#ranks.element, this.#about, this.#actions.element),
      this.#description,
      this.findings.element,
      this.#notices.element,
      this.#numbers.element,
      h("div", { class: "overview" }, this.charts.element, h("div", {}, exponents, tried.element, this.tabs.element)),
    );
    this.charts.within(this.element);
    this.#turn(view);
  }

  /**
   * Goes to a view. A parameter that is chosen is looked at among the gradients, wherever it was named.
   * @param {View} view
   */
  #show(view) {
    const before = this.charts.view;
    if (view.at !== null && view.at !== before.at) this.#goTo(view);
    else if (view.parameter === null || view.parameter === before.parameter) this.onView(view);
    else this.onView(inTab(view, "gradients"));
  }

  /** Shows a view, and its charts on the screen. @param {View} view */
  #goTo(view) {
    this.onView(view);
    this.charts.element.scrollIntoView({ behavior: "smooth", block: "nearest" });
  }

  /** @param {string} tab */
  #open(tab) {
    this.onView(inTab(this.charts.view, tab));
  }

  /** Shows the tab of a view, whose tables are asked for anew. @param {View} view */
  #turn(view) {
    const before = this.tabs.shown;
    this.tabs.show(view.choices["tab"] ?? "");
    if (this.#run && this.tabs.shown !== before) this.readTables();
  }

  get title() {
    return this.#run?.name ?? "Run";
  }

  /** Fetches the summary, and asks for what it says has changed. Rejects where the server does not answer. */
  async refresh() {
    const path = `/runs/${encodeURIComponent(this.id)}`;
    const summary = await get(path).catch((error) => {
      if (error instanceof Refused && error.status === 404) this.onGone();
      throw error;
    });
    this.#run = /** @type {Detail} */ (summary);
    this.findings.heed(this.#run.alerts ?? [], mayChange(this.#run));
    this.tick();
    this.charts.refresh();
    this.readDrawer();
    this.readTables();
    this.#judge(this.#run);
  }

  /**
   * Asks for the charts of what is new, without a wait for the summary.
   * @param {Advance[]} advances
   */
  hear(advances) {
    for (const { run, version, step } of advances) if (run === this.id) this.charts.hear(version, step ?? null);
  }

  /** Writes the numbers again: ages change by themselves. */
  tick() {
    const run = this.#run;
    if (!run) return;
    say(this.#name, run.name);
    render(badge(run.status), this.#state);
    render(html`<bdi>${run.project}</bdi> · <bdi>${run.owner}</bdi> · <span>started ${moment(run.started)} · ${elapsed(run)}</span>`, this.#about);
    this.#describe(run.identity.config["description"]);
    this.#actions.update(run);
    this.#notices.show(this.findings.notices);
    this.#numbers.update(run);
    this.#offerStreams(run);
    this.#ranks.update(run, this.charts.view);
    this.charts.know(run);
    // Side by side are ranks shown where there are several: most runs have one.
    this.rankCharts.hidden = run.ranks < 2;
  }

  /**
   * Does what a key asks for; false where that is nothing of this page.
   * @param {Command} command
   */
  act(command) {
    if (command === "next" || command === "previous") void this.#goToSkip(command === "next" ? "after" : "before");
    else return this.charts.act(command);
    return true;
  }

  /** @param {"after" | "before"} side */
  async #goToSkip(side) {
    try {
      const view = await this.nearest.find(this.charts.view, side);
      if (view) this.#goTo(view);
      else toast(side === "after" ? "No later skip" : "No earlier skip");
    } catch {
      this.onTrouble();
    }
  }

  /**
   * Shows another view of this run.
   * @param {Address} address
   */
  look(address) {
    if (address.page !== "run" || address.run !== this.id) return false;
    const { view } = address;
    const before = this.charts.view;
    this.charts.look(view);
    this.drawer.look(view);
    this.#turn(view);
    this.readDrawer();
    for (const table of [this.skips, this.events, this.parameters]) table.point();
    if (view.stream !== before.stream || view.choices["search"] !== before.choices["search"]) this.readTables();
    return true;
  }

  recolour() {
    void this.charts.recolour();
  }

  close() {
    this.readDrawer.stop();
    this.scales.close();
    this.drawer.close();
    this.readTables.stop();
    this.readFindings.stop();
    this.charts.close();
  }

  async #refreshDrawer() {
    const run = this.#run;
    if (run === null) return;
    try {
      await this.drawer.refresh(run, this.charts.view);
    } catch {
      this.onTrouble();
    }
  }

  /** Those that are shown; of the others nothing is asked. */
  async #tables() {
    const { shown } = this.tabs;
    try {
      if (shown === "skips") await this.skips.refresh();
      if (shown === "events") await this.events.refresh();
      if (shown === "gradients") await this.parameters.refresh((this.#run?.sampled_updates ?? 0) > 0);
      if (!this.#ownSteps) await this.#findOwnSteps();
    } catch (error) {
      if (!(error instanceof Refused)) this.onTrouble();
    }
  }

  /**
   * Asks for the findings where what they are of has changed.
   * @param {Summary} run
   */
  #judge({ version, status }) {
    const now = `${version} ${status}`;
    if (now !== this.#judged) this.readFindings();
    this.#judged = now;
  }

  async #diagnosis() {
    try {
      const going = this.#run?.status === "running" || this.#run?.status === "silent";
      const scalers = new Set(this.#run?.streams.map(({ scaler }) => scaler));
      await this.findings.refresh(going, this.#run?.updates ?? 0, scalers.size);
      this.tick();
    } catch (error) {
      this.#judged = "";
      if (!(error instanceof Refused)) this.onTrouble();
    }
  }

  /**
   * Moves the charts to some steps of a scaler, and the page to the charts.
   * @param {string} scaler
   * @param {number} start
   * @param {number} stop
   */
  #lookAt(scaler, start, stop) {
    const found = this.#streams.hidden ? null : this.#run?.streams.find((stream) => stream.scaler === scaler);
    const stream = found?.stream ?? this.charts.view.stream;
    this.#goTo({ ...this.charts.view, x: "step", start, stop, stream, follow: null, at: null });
  }

  /** Those of one name are enough, and they do not go away. */
  async #findOwnSteps() {
    const answer = await get(`/runs/${encodeURIComponent(this.id)}/scalars`);
    const { names } = /** @type {{names: LoggedName[]}} */ (answer);
    this.#ownSteps = names.some((name) => name.user_steps > 0);
    this.charts.offerOwnSteps(this.#ownSteps);
  }

  /**
   * Shows the description that a run was configured with, if there is one.
   *
   * @param {unknown} words
   */
  #describe(words) {
    this.#description.hidden = typeof words !== "string";
    if (typeof words !== "string") return;
    say(this.#description, words);
    this.#description.title = words;
  }

  /** @param {Summary} run */
  #offerStreams(run) {
    // One stream stands for its scaler on all ranks.
    const scalers = new Map([...run.streams].reverse().map(({ scaler, stream }) => [scaler, stream]));
    this.#streams.hidden = scalers.size < 2;
    // A link may name the stream of any rank; without one, the charts are of the first.
    const shown = run.streams.find(({ stream }) => stream === this.charts.view.stream) ?? run.streams[0];
    offer(this.#streams, [...scalers].reverse().map(([scaler, stream]) => [stream, scaler]), scalers.get(shown?.scaler ?? "") ?? "");
  }

  #choose() {
    this.onView({ ...this.charts.view, stream: this.#streams.value });
  }
}

/**
 * @param {View} view
 * @param {string} tab the first is the one without a word of it
 * @returns {View}
 */
function inTab(view, tab) {
  const { tab: _, ...choices } = view.choices;
  return { ...view, choices: tab === "gradients" ? choices : { ...choices, tab } };
}
