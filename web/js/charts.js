// The charts of a run. Most share one x axis and move together. Only charts on the screen are fetched.

import { chosen, figureQuery, opened } from "./address.js";
import { copyLink, download, downloadText, toast } from "./browser.js";
import { DECLARED, h, mark, renderForm } from "./dom.js";
import { zoneOf } from "./format.js";
import { paced } from "./pace.js";
import { Panel } from "./panel.js";
import { asked, endOf, FOLLOWED, fromPlot, moved, pauseWords, toPlot, within } from "./range.js";
import { csvOf, fileName } from "./saving.js";
import { Refused, SignedOut, wordsOf } from "./server.js";
import { isWhole, toolbar } from "./toolbar.js";

/** The charts that are stacked, from top to bottom. The last one shows the axis. */
const STACK = ["scale", "skips", "scalars", "underflow"];

// The least time between two requests for a chart, and for one that changes only with a sample.
// Each chart has its own timer, so a slow one delays no other.
const EACH_MS = 100;
const SAMPLED_MS = 500;

/** `factor` and `shift` of `moved`, by command. @type {Partial<Record<Command, [number, number]>>} */
const MOVES = { left: [1, -0.5], right: [1, 0.5], in: [0.5, 0], out: [2, 0] };

export class Charts {
  /** Each chart with the trigger that refreshes it. @type {Map<Panel, ReturnType<typeof paced>>} */
  #asks = new Map();
  #toolbar = h("div", { class: "toolbar", role: "toolbar", "aria-label": "Chart controls" });
  /** Whether the pointer is pressed. Redrawing a chart would end a drag on it. */
  #held = false;
  #own = false;
  #generation = 0;
  /** The newest version of the run that this page has seen; -1 before the first. */
  #version = -1;
  #live = false;
  /** Whether this is a single run, whose newest updates can be followed. */
  #follows;
  /** How many of the newest updates are followed, or would be. */
  #newest = FOLLOWED[0] ?? 0;
  #name = "";
  /** @type {End | null} */
  #end = null;
  /** @type {Pause | null} */
  #pause = null;
  /** The range of the whole run on each axis, as last drawn. @type {Partial<Record<View["x"], Span>>} */
  #drawn = {};

  /** @param {View} view @param {ChartsOptions} of */
  constructor(view, { at, more = "", charts, onView, onTrouble }) {
    this.at = (/** @type {string} */ name) => `${at}/figures/${name}?${more}`;
    this.view = view;
    this.go = onView;
    this.onTrouble = onTrouble;
    this.#follows = charts === undefined;
    const panels = charts?.map((name) => this.panel(name)) ?? STACK.map((name) => this.panel(name, name === STACK.at(-1) ? "last" : "stacked"));
    this.element = h("div", { class: "charts" }, this.#toolbar, h("div", { class: charts ? null : "stack" }, ...panels.map(({ element }) => element)));
    window.addEventListener("pointerup", this.#release);
    window.addEventListener("pointercancel", this.#release);
    this.#describe();
  }

  get #panels() {
    return [...this.#asks.keys()];
  }

  /** Follow the pointer in `element`, and draw no chart during a drag there. After a tap on a touch screen, the place stays.
   * @param {HTMLElement} element */
  trackPointer(element) {
    /** @type {PointerEvent | null} */
    let newest = null;
    const tell = () => {
      this.#point(newest && placeOf(newest));
      newest = null;
    };
    const look = (/** @type {PointerEvent} */ event) => {
      if (event.pointerType === "touch" && event.type !== "pointerdown") return;
      if (newest === null) requestAnimationFrame(tell);
      newest = event;
    };
    for (const kind of /** @type {const} */ (["pointermove", "pointerdown", "pointerleave"])) element.addEventListener(kind, look);
    // The end of a press that opens a menu is not reported.
    element.addEventListener("pointerdown", ({ button }) => (this.#held ||= button === 0));
  }

  /** Read every chart that shares the x axis at the pointer's x. @param {Place | null} place */
  #point(place) {
    const pointed = this.#panels.find(({ element }) => element === place?.panel);
    const x = place && pointed ? pointed.xAt(place.across) : null;
    for (const panel of this.#panels) {
      if (panel === pointed) panel.readout.point(x, place?.up ?? null);
      else panel.readout.point(pointed?.range && panel.range ? x : null, null);
    }
  }

  /** The marked step in Plotly's units; null if there is none, or if the x axis has no place for it. */
  get #marked() {
    const { at, x } = this.view;
    return at === null || x === "user" ? null : x === "time" ? at / 1000 : at;
  }

  /** A chart, created when first asked for, then refreshed and closed with the others.
   * @param {string} name @param {Position} [position] */
  panel(name, position) {
    const known = this.#panels.find((panel) => panel.name === name);
    if (known) return known;
    const { choices = [], sampled = false } = DECLARED.charts[name] ?? {};
    const ask = paced(() => this.#refresh(panel), sampled ? SAMPLED_MS : EACH_MS);
    /** @type {Panel} */
    const panel = new Panel(name, choices, this, ask.now, position);
    this.#asks.set(panel, ask);
    panel.readout.mark(this.#marked);
    return panel;
  }

  /** @param {string} name */
  has(name) {
    return this.#panels.some((panel) => panel.name === name);
  }

  /** Request each chart on the screen as soon as its timer allows. */
  refresh() {
    for (const [panel, ask] of this.#asks) if (panel.visible) ask();
  }

  /** Draw each chart of the open tab, on the screen or not: all of them are printed. */
  async drawAll() {
    await Promise.all(this.#panels.map((panel) => this.#refresh(panel, panel.element.checkVisibility())));
  }

  async recolour() {
    await Promise.all(this.#panels.map((panel) => panel.redraw()));
  }

  /** Show another view. @param {View} view */
  look(view) {
    this.view = view;
    for (const panel of this.#panels) panel.readout.mark(this.#marked);
    this.#describe();
    this.#reload();
  }

  /** Say whether there are logged values, and logged steps for an axis. @type {(any: boolean, own: boolean) => void} */
  offerLogged(any, own) {
    this.#own = own;
    if (this.has("scalars")) this.panel("scalars").expectAbsent(!any);
    this.#describe();
  }

  /** Take the run's summary. Called every second: the time since a pause is shown. @param {Summary} run */
  setSummary(run) {
    const end = endOf(run);
    // A summary may be older than the live events.
    const heard = run.version < this.#version ? this.#end : null;
    this.#end = end && heard ? { ...end, step: Math.max(end.step, heard.step), updates: Math.max(end.updates, heard.updates) } : end;
    this.#version = Math.max(this.#version, run.version);
    this.#name = run.name;
    this.#live = run.status === "running" || run.status === "silent";
    this.#describe();
  }

  /** Forget which versions of the run were seen and drawn. */
  forget() {
    this.#version = -1;
    for (const panel of this.#panels) panel.version = null;
  }

  /** Take a live event, which comes before the summary. @type {(version: number, step: number | null) => void} */
  takeEvent(version, step) {
    this.#version = Math.max(this.#version, version);
    const more = this.#end && step !== null ? Math.max(0, step - this.#end.step) : 0;
    if (this.#end) this.#end = { ...this.#end, step: this.#end.step + more, updates: this.#end.updates + more };
    this.refresh();
  }

  /** Run a command. Return false if it is not for the charts. @param {Command} command */
  act(command) {
    const move = MOVES[command];
    if (move) this.#move(...move);
    else if (command === "whole") this.show(null);
    else if (!this.#follows) return false;
    else if (command === "follow") this.follow(this.view.follow === null ? this.#newest : null);
    else if (command === "pause") this.#togglePause();
    else return false;
    return true;
  }

  /** Discard the answers under way, and request the charts on the screen again: at once, or if a key is held, at most
   * every `EACH_MS`. */
  #reload() {
    this.#generation += 1;
    for (const [panel, ask] of this.#asks) {
      panel.abort(EACH_MS);
      if (panel.visible) ask.now();
    }
  }

  close() {
    this.#generation += 1;
    window.removeEventListener("pointerup", this.#release);
    window.removeEventListener("pointercancel", this.#release);
    for (const [panel, ask] of this.#asks) {
      ask.stop();
      panel.close();
    }
  }

  /** Fetch and draw a chart if it is `seen`. Never rejects. @param {Panel} panel */
  async #refresh(panel, seen = panel.visible) {
    const version = this.#follows ? this.#version : null;
    const view = this.#asked;
    if (this.#held || !seen || version === -1 || view === null) return;
    const generation = this.#generation;
    const wanted = () => generation === this.#generation && !this.#held;
    const query = figureQuery(view, panel.choices);
    // The reader's zone at the time shown. Runs are compared over the time since their starts, which has none.
    if (view.x === "time" && this.#follows) query.set("zone", String(zoneOf(view.start ?? this.#end?.time ?? null)));
    if (panel.position !== "alone") query.set("position", panel.position);
    const address = `${this.at(panel.name)}${query}&width=${panel.width}`;
    const current = this.#pause !== null || (version !== null && version === panel.version);
    if (current && panel.shows(address)) return;
    // While following, the address changes with every update, so the view identifies the request.
    const of = this.view.follow === null ? address : String(figureQuery(this.view, panel.choices));
    if (panel.justAnswered(of)) return;
    try {
      await panel.refresh(address, of, version, wanted);
      if (wanted() && panel.range && isWhole(this.view)) this.#drawn[view.x] = fromPlot(panel.range, view.x);
    } catch (error) {
      if (!wanted()) return;
      if (error instanceof Refused && panel.onRefused(error)) return panel.noteAnswer(of);
      if (error instanceof Refused) return panel.fail(`The server could not draw this chart: ${error.message}`);
      this.onTrouble();
      if (panel.blank && !(error instanceof SignedOut)) panel.fail("The server did not answer.");
    }
  }

  /** The view to request; null if the run's end must be known first. */
  get #asked() {
    return this.#follows ? asked(this.view, this.#end, this.#pause) : { ...this.view, follow: null };
  }

  /** The ends of the whole run, in whole steps or microseconds; null if not known yet. */
  get #whole() {
    const { x } = this.view;
    const last = x === "user" ? undefined : this.#end?.[x];
    return { start: this.#drawn[x]?.start ?? null, stop: last === undefined ? (this.#drawn[x]?.stop ?? null) : last + 1 };
  }

  /** @param {Panel} panel @param {Saved} kind */
  async save(panel, kind) {
    if (kind === "link") return copyLink();
    const { start, stop, x } = this.view;
    const stretch = start === null || stop === null ? [] : [x, start, stop - 1];
    const name = fileName([this.#name, panel.name, ...stretch], kind);
    try {
      if (kind === "csv") downloadText(name, csvOf(await panel.whole()), "text/csv");
      else download(name, await panel.picture(kind, this.#name));
      toast(`Saved ${name}`);
    } catch (error) {
      toast(`Could not save the chart: ${wordsOf(error)}`);
    }
  }

  /** Open what the reader clicked on, if anything. @param {Panel} panel @param {Point} point */
  click(panel, point) {
    const view = opened(panel.figure, point, this.view);
    if (view) this.go(view);
  }

  /** @param {Panel} panel @param {PlotRange} range */
  zoom(panel, range) {
    // The chart of another axis stays until the answer arrives.
    if (panel.axis === this.view.x) this.show(fromPlot(range, this.view.x, panel.figure?.layout.meta.zone));
  }

  /** Show a range, or the whole run. @param {Span | null} range */
  show(range) {
    this.go({ ...this.view, ...(range ?? { start: null, stop: null }), follow: null, at: range && this.view.at });
    if (range) for (const panel of this.#panels) if (panel.visible && panel.axis === this.view.x) void panel.show(toPlot(range, this.view.x, panel.figure?.layout.meta.zone));
  }

  /** @type {(name: string, value: string) => void} */
  choose(name, value) {
    this.go({ ...this.view, choices: chosen(this.view.choices, name, value) });
  }

  /** @param {View["x"]} x */
  setAxis(x) {
    if (x !== this.view.x) this.go({ ...this.view, x, start: null, stop: null, follow: null, at: null });
  }

  /** Do nothing while the range shown is unknown: its figures have not arrived. @param {number} factor @param {number} shift */
  #move(factor, shift) {
    const [view, whole] = [this.#asked, this.#whole];
    const [start, stop] = [view?.start ?? whole.start, view?.stop ?? whole.stop];
    if (view === null || start === null || stop === null) return;
    const range = moved({ start, stop }, factor, shift, this.view.at);
    this.show(factor > 1 ? within(range, whole) : range);
  }

  /** Follow this many of the newest updates, or stop following (null). @param {number | null} newest */
  follow(newest) {
    const { view } = this;
    this.go({ ...view, x: newest === null ? view.x : "step", start: null, stop: null, follow: newest, at: null });
  }

  #togglePause() {
    this.#pause = this.#pause === null && this.#end !== null ? { ...this.#end, since: Date.now() } : null;
    this.#describe();
    this.#reload();
  }

  #describe() {
    const paused = this.#pause && pauseWords(this.#pause, this.#end, Date.now());
    this.#newest = this.view.follow ?? this.#newest;
    mark(this.#toolbar, "data-paused", paused === null ? null : "");
    renderForm(toolbar(this, { own: this.#own, live: this.#live, follows: this.#follows, newest: this.#newest, paused }), this.#toolbar);
  }

  #release = () => {
    if (!this.#held) return;
    this.#held = false;
    this.refresh();
  };
}

/** Where the pointer is; null outside all plots. @param {PointerEvent} event @returns {Place | null} */
function placeOf({ target, clientX, clientY, type }) {
  const panel = type !== "pointerleave" && target instanceof Element && target.closest(".plot")?.closest(".panel");
  if (!panel) return null;
  const plot = (target.closest(".nsewdrag") ?? panel.querySelector(".nsewdrag"))?.getBoundingClientRect();
  if (!plot || clientX < plot.left || clientX > plot.right) return null;
  return { panel, across: (clientX - plot.left) / plot.width, up: (plot.bottom - clientY) / plot.height };
}
