// The page of one run: findings, numbers, main charts, and the rest in tabs. It follows the run while it trains.

import { chosen } from "./address.js";
import { copy, motion, toast } from "./browser.js";
import { Charts } from "./charts.js";
import { badge, DECLARED, h, html, nothing, notices, render, renderForm, select, term } from "./dom.js";
import { Findings } from "./findings.js";
import { ago, duration, moment } from "./format.js";
import { paced } from "./pace.js";
import { Drawer, Parameters } from "./parameters.js";
import { skipFinder } from "./range.js";
import { runActions } from "./run-actions.js";
import { get, pathOf, Refused } from "./server.js";
import { eventLedger, skipLedger } from "./table.js";
import { FormatWindow, Simulate, WhatIf } from "./what-if.js";

const DRAWER_MS = 1000;
const TABLES_MS = 2000;
const FINDINGS_MS = 5000;

/** The tab that a key leads to. @type {Record<string, (place: number, tabs: number) => number>} */
const KEYS = {
  ArrowRight: (place, tabs) => (place + 1) % tabs,
  ArrowLeft: (place, tabs) => (place + tabs - 1) % tabs,
  Home: () => 0,
  End: (_, tabs) => tabs - 1,
};

export class Run {
  element = h("article", { class: "run" });
  #recording = h("section", { class: "recording", "aria-label": "Recording" });
  /** A single rank has nothing to be compared with. */
  #compared = h("div", { hidden: true });
  /** @type {Detail | null} */
  #run = null;
  #ownSteps = false;
  #judged = "";
  /** Searches for skips, in turn: each starts at the skip that the one before has found. */
  #searches = Promise.resolve();

  /** @param {Extract<Address, {page: "run"}>} address @param {Host} host */
  constructor(address, host) {
    this.id = address.run;
    this.path = pathOf(this.id);
    this.follows = [this.id];
    this.host = host;
    this.readTables = paced(() => this.#attempt(() => this.#tables()), TABLES_MS);
    this.readFindings = paced(() => this.#attempt(() => this.#diagnosis()), FINDINGS_MS);
    this.readDrawer = paced(() => this.#attempt(() => this.drawer.refresh(this.#run)), DRAWER_MS);
    this.charts = new Charts(address.view, { at: this.path, onView: (view) => this.#show(view), onTrouble: host.onTrouble });
    this.skips = skipLedger(this.path, this.charts);
    this.events = eventLedger(this.path, this.charts);
    this.parameters = new Parameters(this.path, this.charts);
    this.nearestSkip = skipFinder(this.path);
    this.findings = new Findings(this.id, (finding, range) => this.#showFinding(finding, range), host.refresh.now);
    this.drawer = new Drawer(this.path, this.charts);
    this.scales = new WhatIf(this.charts);
    this.window = new FormatWindow(this.charts);
    this.tabs = this.#tabs();
    this.charts.trackPointer(this.element);
    this.#draw();
  }

  /** Each tab with its content. The first is shown if the address names none. @returns {Tab[]} */
  #tabs() {
    const chart = (/** @type {string} */ name) => this.charts.panel(name).element;
    const others = (/** @type {string} */ tab) =>
      Object.keys(DECLARED.charts).filter((name) => DECLARED.charts[name]?.tab === tab && !this.charts.has(name)).map(chart);
    const policies = new Simulate(this.path, this.charts).element;
    this.#compared.append(chart("ranks"));
    return [
      ["gradients", "Gradients by layer", [chart("parameters"), this.drawer.element, ...others("gradients"), this.parameters.element]],
      ["activations", "Activations", others("activations")],
      ["whatif", "What-if and simulator", [chart("whatif"), this.scales.element, chart("simulated"), policies, ...others("whatif")]],
      ["skips", "Skipped steps", [this.skips.element]],
      ["events", "Events", [this.events.element]],
      ["system", "System", [this.#recording, this.#compared, ...others("system")]],
    ];
  }

  get #tab() {
    const asked = this.charts.view.choices["tab"];
    return this.tabs.find(([name]) => name === asked)?.[0] ?? "gradients";
  }

  /** @param {View} view */
  #look(view) {
    this.host.go({ page: "run", run: this.id, view });
  }

  /** Go to a view. A newly chosen parameter opens the tab of gradients. @param {View} view */
  #show(view) {
    const before = this.charts.view;
    if (view.at !== null && view.at !== before.at) this.#goTo(view);
    else if (view.parameter === null || view.parameter === before.parameter) this.#look(view);
    else this.#look(inTab(view, "gradients"));
  }

  /** Go to a view, and scroll to the charts. @param {View} view */
  #goTo(view) {
    this.#look(view);
    this.charts.element.scrollIntoView({ behavior: motion(), block: "nearest" });
  }

  /** @param {string} tab */
  #open(tab) {
    this.#look(inTab(this.charts.view, tab));
  }

  get title() {
    return this.#run?.name ?? "Run";
  }

  /** Fetch the summary, and request what has changed. Rejects if the server does not answer. */
  async refresh() {
    // What was logged decides which charts take room, so it is known before the first is drawn.
    const logged = this.#run ?? this.#readLogged().catch(() => {});
    const run = /** @type {Detail} */ (await get(this.path));
    await logged;
    // The database was restored from a backup, in which the run is shorter.
    if (run.version < (this.#run?.version ?? 0)) this.charts.forget();
    const begun = this.#run?.updates === 0 && run.updates > 0;
    if (!this.#run) this.#showTab();
    this.#run = run;
    this.findings.setRun(run);
    this.tick();
    this.charts.refresh();
    this.readDrawer();
    this.readTables();
    const judged = `${run.version} ${run.status}`;
    if (judged !== this.#judged) (begun ? this.readFindings.now : this.readFindings)();
    this.#judged = judged;
  }

  /** Do the work, or if the server does not answer, check the connection. @param {() => Promise<unknown>} work */
  async #attempt(work) {
    try {
      await work();
    } catch (error) {
      if (!(error instanceof Refused)) this.host.onTrouble();
    }
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
  }

  #draw() {
    const run = this.#run;
    const about = run && html`<bdi>${run.project}</bdi> · <bdi>${run.owner}</bdi> · <span>started <bdi>${moment(run.started)}</bdi> · <span class="elapsed">${elapsed(run)}</span></span>`;
    const description = run?.identity.config["description"];
    const words = typeof description === "string" ? description : nothing;
    if (run) this.#compared.hidden = run.ranks < 2;
    render(html`${tiles("recording", run)}<p class="caption">${run?.advice}</p>`, this.#recording);
    this.#recording.toggleAttribute("data-lost", Boolean(run?.lost_records));
    renderForm(
      html`
        <header>
          <h1 tabindex="-1" dir="auto">${run?.name ?? "…"}</h1>
          <p role="status" class="state">${run && badge(run.status)}</p>
          <button type="button" class="quiet health" ?data-lost=${run?.lost_records} @click=${() => this.#open("system")}>${run?.recording}</button>
          ${run?.choices.map((choice) => this.#choice(run, choice))}
          <div class="whose"><p class="about">${about}</p>${run && runActions(run, this.host.refresh.now, () => this.host.onDeleted(run))}</div>
        </header>
        <p class="description" dir="auto" title=${words} ?hidden=${words === nothing}>${words}</p>
        ${this.findings.element}
        ${notices(this.findings.notices)}
        ${tiles("training", run)}
        <div class="overview">
          ${this.charts.element}
          <div>${this.charts.panel("exponents").element}${this.window.element}${this.#tabbed()}</div>
        </div>
      `,
      this.element,
      ":scope > header select",
    );
  }

  /** Scroll the row of tabs, which may be wider than the screen, to the open one. */
  #showTab() {
    const tab = /** @type {HTMLElement} */ (this.element.querySelector('[aria-selected="true"]'));
    tab.parentElement?.scrollTo({ left: tab.offsetLeft - (window.innerWidth - tab.offsetWidth) / 2 });
  }

  /** The tabs. What is in hidden ones is not on the screen, so it fetches nothing. */
  #tabbed() {
    const shown = this.#tab;
    const tabs = this.tabs.map(([name, words]) => {
      const open = () => this.#open(name);
      return html`<button type="button" role="tab" id=${`tab-${name}`} aria-controls=${`in-${name}`} aria-selected=${name === shown}
        tabindex=${name === shown ? 0 : -1} @click=${open}>${words}</button>`;
    });
    const panels = this.tabs.map(([name, , content]) => {
      return html`<div role="tabpanel" id=${`in-${name}`} aria-labelledby=${`tab-${name}`} ?hidden=${name !== shown}>${content}</div>`;
    });
    return html`<div class="tabs">
      <div role="tablist" aria-label="Run details" @keydown=${(/** @type {KeyboardEvent} */ event) => this.#press(event)}>${tabs}</div>
      ${panels}
    </div>`;
  }

  /** @param {KeyboardEvent} event on a tab */
  #press(event) {
    const move = event.ctrlKey || event.altKey || event.metaKey ? undefined : KEYS[event.key];
    const to = move?.(this.tabs.findIndex(([name]) => `tab-${name}` === document.activeElement?.id), this.tabs.length);
    const [name] = this.tabs[to ?? -1] ?? [];
    if (name === undefined) return;
    event.preventDefault();
    this.#open(name);
    document.getElementById(`tab-${name}`)?.focus({ preventScroll: true });
  }

  /** The choice of a scaler, by a stream, or of a rank. @type {(run: Detail, choice: Choice) => TemplateResult} */
  #choice({ streams }, { name, label, options }) {
    const { stream, rank } = this.charts.view;
    // A link may name the stream of any rank. Without one, the charts show the first stream.
    const scaler = (streams.find((each) => each.stream === stream) ?? streams[0])?.scaler;
    const ofScaler = options.find(([, words]) => words === scaler)?.[0] ?? "";
    return select({
      label,
      options,
      chosen: name === "rank" ? (rank ?? "") : ofScaler,
      hidden: name === "rank" ? options.length < 3 && rank === null : options.length < 2,
      onChoose: (value) => this.#look({ ...this.charts.view, [name]: value || null }),
    });
  }

  /** Run a command. Return false if it is not for this page. @param {Command} command */
  act(command) {
    if (command !== "next" && command !== "previous") return this.charts.act(command);
    this.#searches = this.#searches.then(() => this.#attempt(() => this.#goToSkip(command === "next" ? "after" : "before")));
    return true;
  }

  /** @param {"after" | "before"} side */
  async #goToSkip(side) {
    const view = await this.nearestSkip(this.charts.view, side);
    if (view) this.#goTo(view);
    else toast(side === "after" ? "No later skip" : "No earlier skip");
  }

  /** Show another view of this run. @param {Address} address */
  look(address) {
    if (address.page !== "run" || address.run !== this.id) return false;
    const { view } = address;
    const [before, tab] = [this.charts.view, this.#tab];
    this.charts.look(view);
    this.drawer.look();
    this.#draw();
    this.readDrawer();
    for (const { table } of [this.skips, this.events, this.parameters]) table.point();
    if (tab !== this.#tab) this.#showTab();
    const changed = view.stream !== before.stream || view.choices["search"] !== before.choices["search"];
    if (changed || (this.#run && tab !== this.#tab)) this.readTables();
    return true;
  }

  close() {
    for (const each of [this.readDrawer, this.readTables, this.readFindings]) each.stop();
    for (const each of [this.scales, this.drawer, this.charts]) each.close();
  }

  /** Refresh the table of the open tab only. */
  async #tables() {
    const tab = this.#tab;
    if (tab === "skips") await this.skips.refresh();
    if (tab === "events") await this.events.refresh();
    if (tab === "gradients") await this.parameters.refresh((this.#run?.sampled_updates ?? 0) > 0);
    if (!this.#ownSteps) await this.#readLogged();
  }

  async #diagnosis() {
    await this.findings.refresh().catch((error) => {
      this.#judged = "";
      throw error;
    });
    this.tick();
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

/** The numbers of a run's training or of its recording, left empty before the run is known.
 * @type {(section: "training" | "recording", run: Detail | null) => TemplateResult} */
function tiles(section, run) {
  const shown = Object.entries(DECLARED.numbers[section] ?? {}).map(([key, name]) => tile(key, name, run?.numbers[key]));
  return html`<dl class="numbers">${shown}</dl>`;
}

/** @type {(key: string, name: string, number?: RunNumber) => TemplateResult} */
function tile(key, name, number) {
  const age = number?.since == null ? number?.value : ago(Date.now() / 1000 - number.since / 1e6);
  const again = () => void copy(String(number?.exact));
  // No white space between the elements: they are in one line.
  return html`<div data-number=${key}>
    <dt>${term(name, DECLARED.terms[key])}</dt
    ><dd><button type="button" title="Copy it with all digits" ?disabled=${number?.exact === null} @click=${again}>${age}</button></dd
    ><dd class="more">${number?.more}</dd>
  </div>`;
}

/** @param {Summary} run */
function elapsed(run) {
  const running = run.status === "running" ? Date.now() / 1000 - run.started / 1e6 : null;
  return duration(running ?? run.elapsed ?? 0);
}
