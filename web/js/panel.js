// One chart with its title, terms, caption, choices, and the reason if it is empty. Independent of other charts.

import { roles } from "./browser.js";
import { closePopup, DECLARED, h, html, mark, nothing, popup, renderForm, searchField, select } from "./dom.js";
import { sentence } from "./format.js";
import * as plot from "./plot.js";
import { Readout } from "./readout.js";
import { resolve } from "./roles.js";
import { framed } from "./saving.js";
import { get, wordsOf } from "./server.js";

/** @type {[Saved, string][]} */
const SAVED = [
  ["png", "Save as PNG"],
  ["svg", "Save as SVG"],
  ["csv", "Save data as CSV"],
  ["link", "Copy a link to this view"],
];

/** Whether an element is on the screen, or nearly so: others need not fetch anything. `here` is false until the browser
 * has checked. `onCome` is called each time it comes on the screen. @param {Element} element @param {() => void} onCome */
export function onscreen(element, onCome) {
  const seen = {
    here: false,
    stop() {
      seen.here = false;
      observer.disconnect();
    },
  };
  const look = (/** @type {IntersectionObserverEntry[]} */ entries) => {
    const before = seen.here;
    seen.here = entries.at(-1)?.isIntersecting ?? before;
    if (seen.here && !before) onCome();
  };
  const observer = new IntersectionObserver(look, { rootMargin: "200px" });
  observer.observe(element);
  return seen;
}

export class Panel {
  /** Called for each figure that is drawn. @type {(meta: Meta, layout: Layout) => void} */
  onDrawn = () => {};
  /** Called with a refusal. Return true if it is shown, so that the chart stays. @type {(error: Refused) => boolean} */
  onRefused = () => false;
  /** For this long after an answer, the same request is not repeated. */
  restMs = 0;
  /** @type {Figure | null} */
  figure = null;
  /** The run's version when the figure was requested; null if not known. @type {number | null} */
  version = null;
  #rested = { of: "", until: 0 };
  plot = h("div", { class: "plot", role: "img", hidden: true });
  readout = new Readout(this.plot);
  /** The choices, kept if a range has nothing to draw. @type {Choice[]} */
  #choices = [];
  /** Why the chart is missing, or "". */
  #trouble = "";
  #absent = false;
  #listening = false;
  /** Whether the plot shows another range than its figure, until that range's figure arrives. */
  #moved = false;
  #address = "";
  /** Aborts the request under way. */
  #request = new AbortController();
  #onscreen;

  /** `choices` are the chart's query parameters. `onWanted` is called when the chart needs a refresh: it came on the screen,
   * or the reader tries again. In the stack the caption is in the popup, for lack of room.
   * @param {string} name @param {readonly string[]} choices @param {ChartActions} charts @param {() => void} onWanted
   * @param {Position} [position] */
  constructor(name, choices, charts, onWanted, position = "alone") {
    this.name = name;
    this.choices = choices;
    this.charts = charts;
    this.onWanted = onWanted;
    this.position = position;
    this.element = h("section", { class: "panel", "data-figure": name, "data-waiting": true });
    this.#write();
    this.#onscreen = onscreen(this.element, onWanted);
  }

  get #meta() {
    return this.figure?.layout.meta;
  }

  /** Whether it is on the screen, or nearly so. An empty chart takes no room, so it always counts as visible. */
  get visible() {
    return this.#onscreen.here || this.#nothing;
  }

  get #nothing() {
    return this.#meta ? this.#meta.absent === true : this.#absent;
  }

  /** Take no room if `absent`, unless the figure says otherwise. @param {boolean} absent */
  expectAbsent(absent) {
    this.#absent = absent;
    if (this.#meta === undefined) this.#write();
  }

  /** Whether nothing is shown yet, or the last try failed. */
  get blank() {
    return this.figure === null || this.#trouble !== "";
  }

  /** The plot's width in pixels, rounded so that a scroll bar changes nothing. */
  get width() {
    return Math.max(100, Math.ceil(this.element.clientWidth / 20) * 20);
  }

  /** The drawn range of the shared x axis, or null. @returns {PlotRange | null} */
  get range() {
    const { range = null, fixedrange } = this.figure?.layout.xaxis ?? {};
    // A chart that cannot be zoomed has its own axis instead of the shared one.
    return fixedrange ? null : range;
  }

  /** The x axis of its figure; null without one. */
  get axis() {
    return new URLSearchParams(this.#address.split("?")[1]).get("x");
  }

  /** Draw the figure at `address` if it is new. `of` identifies the request. `version` is the run's known version. `wanted`
   * tells, when the answer arrives, whether it is still needed.
   * @param {string} address @param {string} of @param {number | null} version @param {() => boolean} wanted */
  async refresh(address, of, version, wanted) {
    this.#request = new AbortController();
    const figure = /** @type {Figure} */ (await get(address, this.#request.signal));
    if (!wanted()) return;
    const same = figure === this.figure && this.shows(address);
    this.noteAnswer(of);
    this.#address = address;
    this.version = version;
    if (same) return;
    this.figure = figure;
    await this.redraw();
  }

  /** Abort the request under way, unless it ends within `ms`. @param {number} ms */
  abort(ms) {
    const request = this.#request;
    setTimeout(() => request.abort(), ms);
  }

  /** Whether the plot shows its figure, and its range. */
  get #drawn() {
    return this.#trouble === "" && !this.#moved;
  }

  /** Whether it shows the figure at `address`. @param {string} address */
  shows(address) {
    return address === this.#address && this.#drawn;
  }

  /** Whether the same request was just answered. @param {string} of */
  justAnswered(of) {
    return of === this.#rested.of && performance.now() < this.#rested.until && this.#drawn;
  }

  /** Note that a request was answered, or that a refusal is shown, after which the figure is drawn anew. @param {string} of */
  noteAnswer(of) {
    this.#address = "";
    this.#rested = { of, until: performance.now() + this.restMs };
  }

  async redraw() {
    if (!this.figure) return;
    const { layout } = this.figure;
    this.#moved = false;
    this.#trouble = "";
    this.#choices = layout.meta.choices ?? this.#choices;
    this.#write();
    this.onDrawn(layout.meta, layout);
    if (layout.meta.empty) return;
    // Plotly fills its element, which without a fixed height collapses while the window is resized.
    this.plot.style.height = `${layout.height}px`;
    this.plot.style.setProperty("--right", `${layout.margin.r}px`);
    try {
      await plot.draw(this.plot, () => this.#resolved());
    } catch (error) {
      return this.fail(wordsOf(error));
    }
    this.element.classList.toggle("linked", this.range !== null);
    if (this.#read) this.readout.show(this.figure, this.position === "alone" ? "" : layout.meta.caption);
    if (!this.#listening) plot.listen(this.plot, this, this.charts);
    this.#listening = true;
  }

  /** Whether its values are in the row above. Horizontal bars and several x axes need hover boxes instead. */
  get #read() {
    return !this.figure?.data.some((trace) => "orientation" in trace || "xaxis" in trace);
  }

  /** The figure in the theme's colours. With values in the row above, hover stays on only where a click needs it. */
  #resolved() {
    const { data, layout } = resolve(/** @type {Figure} */ (this.figure), roles());
    this.plot.classList.toggle("read", this.#read);
    return { data, layout: this.#read ? { ...layout, hovermode: layout.meta.opens ? "closest" : false } : layout };
  }

  /** The x at a share of the plot's width, in Plotly's units; null without a range of x. @param {number} share */
  xAt(share) {
    const { range } = this.figure?.layout.xaxis ?? {};
    return range ? range[0] + share * (range[1] - range[0]) : null;
  }

  /** Show why the chart is missing, and a button to try again. @param {string} why */
  fail(why) {
    this.#trouble = why;
    this.#write();
  }

  /** @param {PlotRange} range */
  async show(range) {
    if (this.plot.hidden || !this.range) return;
    this.#moved = true;
    await plot.show(this.plot, range);
  }

  /** Its figure, with the axis and the legend that the stack leaves out. @returns {Promise<Figure>} */
  async whole() {
    if (this.figure && this.position === "alone") return this.figure;
    return /** @type {Figure} */ (await get(this.#address.replace(/&position=\w+/, "")));
  }

  /** An image with its title, its caption and the run's name, as a data: URL. @type {(format: "png" | "svg", run: string) => Promise<string>} */
  async picture(format, run) {
    return plot.picture(resolve(framed(await this.whole(), run, "role:background", this.width), roles()), format);
  }

  close() {
    this.#onscreen.stop();
    plot.clear(this.plot);
  }

  #write() {
    const { name } = this;
    const { title = DECLARED.charts[name]?.title ?? (this.#trouble && sentence(name)), caption = "", empty = "", definitions = {} } = this.#meta ?? {};
    const why = this.#trouble || (this.#meta ? empty : "Loading…");
    const stacked = this.position !== "alone";
    const words = html`<p class="caption" ?hidden=${!caption}>${caption}</p>`;
    const terms = Object.entries(definitions).map(([word, definition]) => html`<div><dt>${word}</dt><dd>${definition}</dd></div>`);
    const again = () => {
      this.fail("Trying again…");
      this.onWanted();
    };
    mark(this.element, "data-waiting", this.#meta ? null : "");
    this.element.hidden = this.#nothing;
    this.plot.hidden = why !== "";
    this.readout.element.hidden = why !== "" && !stacked;
    this.plot.setAttribute("aria-label", `${title}. ${caption}`);
    renderForm(
      html`
        <header>
          <h2 ?hidden=${!title}>${title}</h2>
          ${popup("about", "i", `About “${title || name}”`, html`<div tabindex="0">${stacked ? words : nothing}<dl>${terms}</dl></div>`)}
          <span class="choices">${this.#choices.map((choice) => this.#field(choice))}</span>
          ${stacked ? this.readout.element : nothing}
          ${popup("menu", "⋯", `Save “${title || name}”, or copy a link`, html`<ul tabindex="-1">${SAVED.map((each) => this.#saving(each))}</ul>`, why !== "")}
        </header>
        ${stacked ? nothing : words}
        <p class="empty" ?hidden=${!why}>${why}</p>
        <button type="button" ?hidden=${!this.#trouble} @click=${again}>Try again</button>
        ${stacked ? nothing : this.readout.element}
        ${this.plot}
      `,
      this.element,
    );
  }

  /** @param {Choice} choice without options it is a search field */
  #field({ name, label, options, chosen }) {
    const onChoose = (/** @type {string} */ value) => this.charts.choose(name, value);
    if (options.length > 0) return select({ name, label, options, chosen, onChoose });
    const search = this.charts.view.choices[name] ?? "";
    return searchField({ name, label, placeholder: "Find parameters", search, onSearch: onChoose });
  }

  /** @param {[Saved, string]} item of the menu */
  #saving([kind, words]) {
    const save = (/** @type {UserEvent} */ event) => {
      closePopup(event);
      void this.charts.save(this, kind);
    };
    return html`<li><button type="button" class="quiet" @click=${save}>${words}</button></li>`;
  }
}
