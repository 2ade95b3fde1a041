// One chart with its words: title, terms, caption, what there is to choose, and why it is empty. Knows no other chart.

import { get } from "./api.js";
import { h, mark, renderForm, select } from "./dom.js";
import { html, nothing } from "./lit-html.js";
import { menu, popup } from "./menu.js";
import { Onscreen } from "./onscreen.js";
import { opened } from "./opened.js";
import * as plot from "./plot.js";
import { Readout } from "./readout.js";
import { resolve } from "./roles.js";
import { csvOf, framed } from "./saving.js";
import { offerSearch, searchField } from "./search.js";
import * as theme from "./theme.js";

/** @import { Refused } from "./api.js" */
/** @import { Choice, Figure, Meta, Point, View } from "../types/page.js" */
/** @import { Saved } from "./menu.js" */
/** @import { PlotRange } from "./plot.js" */

/** @typedef {"alone" | "stacked" | "last"} Position whether a chart stands in the stack, and has its axis there */

/**
 * What the reader does to a chart, and that it wants to be refreshed: it came on the screen, or is to be tried again.
 * @typedef {{onZoom: (range: PlotRange) => void, onReset: () => void, onClick: (point: Point) => void,
 *   onChoice: (name: string, value: string) => void, onWanted: () => void,
 *   onSave: (kind: Saved) => void}} Listener
 */

export class Panel {
  /** Told the words of each figure, and its layout, as it is drawn. @type {(meta: Meta, layout: object) => void} */
  onDrawn = () => {};
  /** Told why the server refused; true where that is shown, and the chart stays. @type {(error: Refused) => boolean} */
  onRefused = () => false;
  /** So long after an answer it is not asked for the same again. */
  restMs = 0;
  #rested = { of: "", until: 0 };
  #plot = h("div", { class: "plot", role: "img", hidden: true });
  #readout = new Readout(this.#plot);
  /** What there is to choose, where a stretch has nothing to draw as well. @type {Choice[]} */
  #choices = [];
  /** The fields of those that are written. @type {Record<string, HTMLInputElement>} */
  #written = {};
  /** @type {Figure | null} */
  #figure = null;
  /** Why it is not there; "" where it is. */
  #trouble = "";
  #absent = false;
  #listening = false;
  /** Whether the plot shows another stretch than its figure does, until the figure of that stretch comes. */
  #moved = false;
  #address = "";
  /** How far the run was when it was asked for; null where that is not known. @type {number | null} */
  version = null;
  #onscreen;

  /**
   * @param {string} name
   * @param {readonly string[]} choices what the reader can choose of it, by the names in its address
   * @param {Listener} listener
   * @param {Position} [position] in the stack its caption is among what its words mean, for want of room
   */
  constructor(name, choices, listener, position = "alone") {
    this.name = name;
    this.choices = choices;
    this.listener = listener;
    this.position = position;
    this.element = h("section", { class: "panel", "data-figure": name, "data-waiting": true });
    this.#write();
    this.#onscreen = new Onscreen(this.element, listener.onWanted);
  }

  get #meta() {
    return this.#figure?.layout.meta;
  }

  /** Whether it is on the screen, or nearly so, or has nothing to show in its place, which is left to others then. */
  get visible() {
    return this.#onscreen.here || this.#nothing;
  }

  get #nothing() {
    return this.#meta ? this.#meta.absent === true : this.#absent;
  }

  /** Takes no room where nothing is to come, unless its figure says otherwise. @param {boolean} absent */
  foresee(absent) {
    this.#absent = absent;
    if (this.#meta === undefined) this.#write();
  }

  /** Whether it waits for what it is to show, be it once more after it failed. */
  get blank() {
    return this.#figure === null || this.#trouble !== "";
  }

  /** The plot's width in pixels, coarse enough that a scroll bar changes nothing. */
  get width() {
    return Math.max(100, Math.ceil(this.element.clientWidth / 20) * 20);
  }

  /** The stretch of x that is drawn, or null. @returns {PlotRange | null} */
  get range() {
    const axis = /** @type {{range?: PlotRange, fixedrange?: boolean} | undefined} */ (this.#figure?.layout.xaxis);
    // A chart that cannot be zoomed has an axis of its own, and not the one that the others share.
    return axis?.fixedrange ? null : (axis?.range ?? null);
  }

  /**
   * Draws what the server has at `address`, if that is new here.
   * @param {string} address
   * @param {string} of what it rests from, once it has that
   * @param {number | null} version how far the run is known to be
   * @param {() => boolean} wanted whether it still is, when the answer arrives
   */
  async refresh(address, of, version, wanted) {
    const figure = /** @type {Figure} */ (await get(address));
    if (!wanted()) return;
    this.rest(of);
    this.#address = address;
    this.version = version;
    if (figure === this.#figure && this.#drawn) return;
    this.#figure = figure;
    await this.redraw();
  }

  /** Whether the plot shows what its figure does. */
  get #drawn() {
    return this.#trouble === "" && !this.#moved;
  }

  /** Whether it shows what the server had at `address`. @param {string} address */
  shows(address) {
    return address === this.#address && this.#drawn;
  }

  /** Whether it just had an answer to the same. @param {string} of */
  rests(of) {
    return of === this.#rested.of && performance.now() < this.#rested.until && this.#drawn;
  }

  /** @param {string} of what there is an answer to now, be it a refusal */
  rest(of) {
    this.#rested = { of, until: performance.now() + this.restMs };
  }

  /** Draws what is held, in the theme's colours. */
  async redraw() {
    if (!this.#figure) return;
    const { layout } = this.#figure;
    this.#moved = false;
    this.#trouble = "";
    this.#choices = layout.meta.choices ?? this.#choices;
    this.#write();
    this.onDrawn(layout.meta, layout);
    if (layout.meta.empty) return;
    // Plotly fills its element: without a height of its own that would give way while the window is resized.
    const { height, margin } = /** @type {{height?: number, margin?: {r?: number}}} */ (layout);
    this.#plot.style.height = `${height}px`;
    this.#plot.style.setProperty("--right", `${margin?.r}px`);
    try {
      await plot.draw(this.#plot, () => this.#resolved());
    } catch (error) {
      return this.fail(error instanceof Error ? error.message : String(error));
    }
    this.element.classList.toggle("linked", this.range !== null);
    if (this.#read) this.#readout.show(this.#figure);
    if (!this.#listening) plot.listen(this.#plot, this.listener);
    this.#listening = true;
  }

  /** Whether it is read in a row above it: what lies on its side has boxes over its data. */
  get #read() {
    return !this.#figure?.data.some((trace) => "orientation" in trace || "xaxis" in trace);
  }

  /** What is drawn: a box over the data is only a nuisance where that is read above it, but a click needs one. */
  #resolved() {
    const { data, layout } = resolve(/** @type {Figure} */ (this.#figure), theme.roles());
    this.#plot.classList.toggle("read", this.#read);
    return { data, layout: this.#read ? { ...layout, hovermode: layout.meta.opens ? "closest" : false } : layout };
  }

  /**
   * The x at a share of the plot's width, in Plotly's terms; null where nothing is read along it.
   * @param {number} share
   */
  at(share) {
    const { range } = /** @type {{range?: [number, number]}} */ (this.#figure?.layout.xaxis ?? {});
    return range ? range[0] + share * (range[1] - range[0]) : null;
  }

  /**
   * Reads it at a place along x, and how far up; null is the mark or the newest.
   * @type {(x: number | null, up: number | null) => void}
   */
  point(x, up) {
    this.#readout.point(x, up);
  }

  /** @param {number | null} x of a step that is looked at, in Plotly's terms */
  mark(x) {
    this.#readout.mark(x);
  }

  /** Says in the chart's place why it is not there, and offers to try again. @param {string} why */
  fail(why) {
    this.#trouble = why;
    this.#write();
  }

  #again() {
    this.fail("Trying again…");
    this.listener.onWanted();
  }

  /** @param {PlotRange} range */
  async show(range) {
    if (this.#plot.hidden || !this.range) return;
    this.#moved = true;
    await plot.show(this.#plot, range);
  }

  /**
   * What a click on a point of it opens, as a view; null where nothing.
   * @type {(point: Point, view: View) => View | null}
   */
  opens(point, view) {
    return opened(this.#figure, point, view);
  }

  /** What is drawn, a point a row; "" where nothing is. */
  csv() {
    return this.#figure ? csvOf(this.#figure) : "";
  }

  /**
   * A picture of what is drawn, with its words and the run's name, as a URL of data.
   * @type {(format: "png" | "svg", run: string) => Promise<string>}
   */
  async picture(format, run) {
    if (!this.#figure) throw new Error("nothing is drawn");
    const figure = framed(this.#figure, run, "role:background", this.width);
    return plot.picture(resolve(/** @type {Figure} */ (figure), theme.roles()), format);
  }

  /** Lays an element over the plot. @param {HTMLElement} element */
  cover(element) {
    this.#plot.append(element);
  }

  close() {
    this.#onscreen.stop();
    plot.clear(this.#plot);
  }

  #write() {
    const { name, listener } = this;
    const { title = this.#trouble && sentence(name), caption = "", empty = "", definitions = {} } = this.#meta ?? {};
    const why = this.#trouble || (this.#meta ? empty : "Loading…");
    const stacked = this.position !== "alone";
    const words = html`<p class="caption" ?hidden=${!caption}>${caption}</p>`;
    const terms = Object.entries(definitions).map(([word, definition]) => html`<div><dt>${word}</dt><dd>${definition}</dd></div>`);
    const about = html`<div tabindex="0">${stacked ? words : nothing}<dl>${terms}</dl></div>`;
    mark(this.element, "data-waiting", this.#meta ? null : "");
    this.element.hidden = this.#nothing;
    this.#plot.hidden = why !== "";
    this.#readout.element.hidden = why !== "" && !stacked;
    this.#plot.setAttribute("aria-label", `${title}. ${caption}`);
    renderForm(
      html`
        <header>
          <h2 ?hidden=${!title}>${title}</h2>
          ${popup("about", "i", `About ${name}`, about)}
          <span class="choices">${this.#choices.map((choice) => this.#field(choice))}</span>
          ${stacked ? this.#readout.element : nothing}
          ${menu(name, why !== "", listener.onSave)}
        </header>
        ${stacked ? nothing : words}
        <p class="empty" ?hidden=${!why}>${why}</p>
        <button type="button" ?hidden=${!this.#trouble} @click=${() => this.#again()}>Try again</button>
        ${stacked ? nothing : this.#readout.element}
        ${this.#plot}
      `,
      this.element,
    );
  }

  /** @param {Choice} choice one without options is written */
  #field({ name, label, options, chosen }) {
    const onChoose = (/** @type {string} */ value) => this.listener.onChoice(name, value);
    if (options.length > 0) return select({ name, label, options, chosen, onChoose });
    const field = (this.#written[name] ??= searchField(name, label, "Find parameters", onChoose));
    offerSearch(field, chosen);
    return field;
  }
}

/** @param {string} name */
function sentence(name) {
  return name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");
}
