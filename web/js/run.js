// The page of one run: findings, numbers, main charts, and the rest in tabs. It follows the run while it trains.

import { mayChange } from "./account.js";
import { chosen } from "./address.js";
import { toast } from "./browser.js";
import { Charts } from "./charts.js";
import { badge, h, html, mark, nothing, notices, render, renderForm, select } from "./dom.js";
import { Findings } from "./findings.js";
import { moment } from "./format.js";
import { elapsed, health, rankField, recording, tiles } from "./numbers.js";
import { paced } from "./pace.js";
import { Drawer, Parameters } from "./parameters.js";
import { SkipFinder } from "./range.js";
import { pathOf, runActions } from "./run-actions.js";
import { get, Refused } from "./server.js";
import { eventLedger, skipLedger } from "./step-tables.js";
import { FormatWindow, Simulate, WhatIf } from "./what-if.js";
import { chartsIn } from "./words.js";

/** The tab that a key leads to. @type {Record<string, (place: number, tabs: number) => number>} */
const MOVES = {
  ArrowRight: (place, tabs) => (place + 1) % tabs,
  ArrowLeft: (place, tabs) => (place + tabs - 1) % tabs,
  Home: () => 0,
  End: (_, tabs) => tabs - 1,
};

export class Tabs {
  #tabs;
  #panels;

  /** @param {string} label @param {[name: string, words: string, content: HTMLElement[]][]} tabs
   * @param {(name: string) => void} onChoose */
  constructor(label, tabs, onChoose) {
    this.names = tabs.map(([name]) => name);
    this.onChoose = onChoose;
    this.#tabs = tabs.map(([name, words]) =>
      h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `in-${name}`, onclick: () => onChoose(name) }, words),
    );
    this.#panels = tabs.map(([name, , content]) => h("div", { role: "tabpanel", id: `in-${name}`, "aria-labelledby": `tab-${name}` }, ...content));
    const list = h("div", { role: "tablist", "aria-label": label, onkeydown: (event) => this.#press(event) }, ...this.#tabs);
    this.element = h("div", { class: "tabs" }, list, ...this.#panels);
  }

  /** Show a tab; the first if there is none of that name. @param {string} name */
  show(name) {
    const place = Math.max(0, this.names.indexOf(name));
    this.shown = this.names[place] ?? "";
    this.#tabs.forEach((tab, index) => {
      mark(tab, "aria-selected", String(index === place));
      tab.tabIndex = index === place ? 0 : -1;
    });
    this.#panels.forEach((panel, index) => (panel.hidden = index !== place));
  }

  /** @param {KeyboardEvent} event */
  #press(event) {
    const move = event.ctrlKey || event.altKey || event.metaKey ? undefined : MOVES[event.key];
    const to = move?.(this.#tabs.findIndex((tab) => tab === document.activeElement), this.#tabs.length);
    if (to === undefined) return;
    event.preventDefault();
    this.onChoose(this.names[to] ?? "");
    this.#tabs[to]?.focus({ preventScroll: true });
  }
}

const DRAWER_MS = 1000;
const TABLES_MS = 2000;
const FINDINGS_MS = 5000;

export class Run {
  element = h("article", { class: "run" });
  #recording = h("div");
  /** @type {Detail | null} */
  #run = null;
  #ownSteps = false;
  #judged = "";

  /** @param {string} id @param {View} view @param {{onView: (view: View) => void, onTrouble: () => void, onDeleted: () => void}} listener */
  constructor(id, view, { onView, onTrouble, onDeleted }) {
    this.id = id;
    this.path = pathOf({ run_id: id });
    this.follows = [id];
    this.onView = onView;
    this.onTrouble = onTrouble;
    this.onDeleted = onDeleted;
    this.readTables = paced(() => this.#tables(), TABLES_MS);
    this.readFindings = paced(() => this.#diagnosis(), FINDINGS_MS);
    this.readDrawer = paced(() => this.#refreshDrawer(), DRAWER_MS);
    const page = { view: () => this.charts.view, onView: (/** @type {View} */ next) => this.#show(next) };
    this.charts = new Charts(id, view, { onView: page.onView, onTrouble });
    this.skips = skipLedger(id, page);
    this.events = eventLedger(id, page);
    this.parameters = new Parameters(id, page);
    this.nearest = new SkipFinder(this.path);
    this.findings = new Findings(id, (finding, range) => this.#showFinding(finding, range), () => void this.#again());
    const chart = (/** @type {string} */ name) => this.charts.panel(name).element;
    this.rankCharts = chart("ranks");
    const [whatif, simulated, exponents] = [chart("whatif"), chart("simulated"), chart("exponents")];
    this.drawer = new Drawer(this.charts, onView);
    this.scales = new WhatIf(this.charts, onView);
    const policies = new Simulate(id, this.charts, onView);
    const others = (/** @type {string} */ tab) => chartsIn(tab).filter((name) => !this.charts.panelOf(name)).map(chart);
    this.tabs = new Tabs(
      "Run details",
      [
        ["gradients", "Gradients by layer", [chart("parameters"), this.drawer.element, ...others("gradients"), this.parameters.element]],
        ["activations", "Activations", others("activations")],
        ["whatif", "What-if and simulator", [whatif, this.scales.element, simulated, policies.element, ...others("whatif")]],
        ["skips", "Skipped steps", [this.skips.element]],
        ["events", "Events", [this.events.element]],
        ["system", "System", [this.#recording, this.rankCharts, ...others("system")]],
      ],
      (name) => this.#open(name),
    );
    this.below = h("div", {}, exponents, new FormatWindow(this.charts).element, this.tabs.element);
    this.charts.trackPointer(this.element);
    this.#showTab(view);
    this.#draw();
  }

  /** Go to a view. A newly chosen parameter opens the tab of gradients. @param {View} view */
  #show(view) {
    const before = this.charts.view;
    if (view.at !== null && view.at !== before.at) this.#goTo(view);
    else if (view.parameter === null || view.parameter === before.parameter) this.onView(view);
    else this.onView(inTab(view, "gradients"));
  }

  /** Go to a view, and scroll to the charts. @param {View} view */
  #goTo(view) {
    this.onView(view);
    this.charts.element.scrollIntoView({ behavior: "smooth", block: "nearest" });
  }

  /** @param {string} tab */
  #open(tab) {
    this.onView(inTab(this.charts.view, tab));
  }

  /** Show the view's tab, and refresh its table. @param {View} view */
  #showTab(view) {
    const before = this.tabs.shown;
    this.tabs.show(view.choices["tab"] ?? "");
    if (this.#run && this.tabs.shown !== before) this.readTables();
  }

  get title() {
    return this.#run?.name ?? "Run";
  }

  /** Fetch the summary, and request what has changed. Rejects if the server does not answer. */
  async refresh() {
    // What was logged decides which charts take room, so it is known before the first is drawn.
    const logged = this.#run ?? this.#readLogged().catch(() => {});
    const summary = await get(this.path);
    await logged;
    const run = /** @type {Detail} */ (summary);
    this.#run = run;
    this.findings.setRun(run, mayChange(run));
    this.tick();
    this.charts.refresh();
    this.readDrawer();
    this.readTables();
    const judged = `${run.version} ${run.status}`;
    if (judged !== this.#judged) this.readFindings();
    this.#judged = judged;
  }

  async #again() {
    await this.refresh().catch(() => this.onTrouble());
  }

  /** Request charts of new updates at once, except before the first summary. @param {Advance[]} advances */
  takeEvents(advances) {
    if (this.#run === null) return;
    for (const { run, version, step } of advances) if (run === this.id) this.charts.takeEvent(version, step ?? null);
  }

  tick() {
    if (!this.#run) return;
    this.#draw();
    this.charts.setSummary(this.#run);
    // A single rank has nothing to be compared with.
    this.rankCharts.hidden = this.#run.ranks < 2;
  }

  #draw() {
    const run = this.#run;
    const about = run && html`<bdi>${run.project}</bdi> · <bdi>${run.owner}</bdi> · <span>started ${moment(run.started)} · ${elapsed(run)}</span>`;
    const description = run?.identity.config["description"];
    const words = typeof description === "string" ? description : nothing;
    render(recording(run), this.#recording);
    renderForm(
      html`
        <header>
          <h1 dir="auto">${run?.name ?? "…"}</h1>
          <p role="status" class="state">${run && badge(run.status)}</p>
          ${health(run, () => this.#open("system"))}
          ${run && this.#streams(run)}
          ${run && rankField(run, this.charts.view, (rank) => this.onView({ ...this.charts.view, rank }))}
          <p class="about">${about}</p>
          ${run && runActions(run, () => void this.#again(), this.onDeleted)}
        </header>
        <p class="description" dir="auto" title=${words} ?hidden=${words === nothing}>${words}</p>
        ${this.findings.element}
        ${notices(this.findings.notices)}
        ${tiles(run)}
        <div class="overview">${this.charts.element}${this.below}</div>
      `,
      this.element,
      ":scope > header select",
    );
  }

  /** @param {Summary} run */
  #streams({ streams }) {
    // One stream stands for its scaler on all ranks.
    const scalers = new Map([...streams].reverse().map(({ scaler, stream }) => [scaler, stream]));
    // A link may name the stream of any rank. Without one, the charts show the first stream.
    const shown = streams.find(({ stream }) => stream === this.charts.view.stream) ?? streams[0];
    return select({
      label: "Scaler",
      options: [...scalers].reverse().map(([scaler, stream]) => [stream, scaler]),
      chosen: scalers.get(shown?.scaler ?? "") ?? "",
      hidden: scalers.size < 2,
      onChoose: (stream) => this.onView({ ...this.charts.view, stream }),
    });
  }

  /** Run a command. Return false if it is not for this page. @param {Command} command */
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

  /** Show another view of this run. @param {Address} address */
  look(address) {
    if (address.page !== "run" || address.run !== this.id) return false;
    const { view } = address;
    const before = this.charts.view;
    this.charts.look(view);
    this.drawer.look(view);
    this.#showTab(view);
    this.readDrawer();
    for (const table of [this.skips, this.events, this.parameters]) table.point();
    if (view.stream !== before.stream || view.choices["search"] !== before.choices["search"]) this.readTables();
    return true;
  }

  recolour() {
    void this.charts.recolour();
  }

  close() {
    for (const each of [this.readDrawer, this.readTables, this.readFindings]) each.stop();
    for (const each of [this.scales, this.drawer, this.charts]) each.close();
  }

  async #refreshDrawer() {
    if (this.#run) await this.drawer.refresh(this.#run, this.charts.view).catch(() => this.onTrouble());
  }

  /** Refresh the table of the open tab only. */
  async #tables() {
    const { shown } = this.tabs;
    try {
      if (shown === "skips") await this.skips.refresh();
      if (shown === "events") await this.events.refresh();
      if (shown === "gradients") await this.parameters.refresh((this.#run?.sampled_updates ?? 0) > 0);
      if (!this.#ownSteps) await this.#readLogged();
    } catch (error) {
      if (!(error instanceof Refused)) this.onTrouble();
    }
  }

  async #diagnosis() {
    try {
      await this.findings.refresh(this.#run);
      this.tick();
    } catch (error) {
      this.#judged = "";
      if (!(error instanceof Refused)) this.onTrouble();
    }
  }

  /** Show a finding's steps and scaler in the charts. @type {(finding: Finding, range: Span) => void} */
  #showFinding({ scaler }, range) {
    const { view } = this.charts;
    const streams = this.#run?.streams ?? [];
    const several = streams.some((stream) => stream.scaler !== streams[0]?.scaler);
    const stream = (several && streams.find((each) => each.scaler === scaler)?.stream) || view.stream;
    this.#goTo({ ...view, ...range, x: "step", stream, follow: null, at: null });
  }

  /** Fetch the names of logged values. Logged steps, once there, do not go away. */
  async #readLogged() {
    const { names } = /** @type {{names: LoggedName[]}} */ (await get(`${this.path}/scalars`));
    this.#ownSteps = names.some((name) => name.user_steps > 0);
    this.charts.offerLogged(names.length > 0, this.#ownSteps);
  }
}

/** The first tab is not in the address. @type {(view: View, tab: string) => View} */
function inTab(view, tab) {
  return { ...view, choices: chosen(view.choices, "tab", tab === "gradients" ? "" : tab) };
}
