// The page of all runs, searched, filtered and sorted by the server. Only the rows on the screen are on the page.

import { h, html, keyed, mark, nothing, notices, render } from "./dom.js";
import { columnChoice, shownColumns } from "./list-columns.js";
import { Filters } from "./list-filters.js";
import { paced } from "./pace.js";
import { pagesOf, rowsOn } from "./range.js";
import { Actions } from "./run-actions.js";
import { get } from "./server.js";
import { Table } from "./table.js";
import { LINES } from "./words.js";

/** @extends {Table<ListRow>} */
class RunTable extends Table {
  #total = 0;
  #onScroll;

  /** @param {{onSort: (order: Order) => void, onScroll: () => void, onChoose: (run: string, chosen: boolean) => void}} listener */
  constructor({ onSort, onScroll, onChoose }) {
    super("Runs", shownColumns(), ({ run }) => run.run_id, { onSort });
    this.element.classList.add("runs");
    this.body.addEventListener("change", ({ target }) => {
      if (target instanceof HTMLInputElement) onChoose(target.value, target.checked);
    });
    this.#onScroll = onScroll;
    window.addEventListener("scroll", onScroll, { passive: true });
    window.addEventListener("resize", onScroll);
  }

  close() {
    window.removeEventListener("scroll", this.#onScroll);
    window.removeEventListener("resize", this.#onScroll);
  }

  /** A row's height in pixels, which the style sheet sets for the screen's width. */
  get rowHeight() {
    return parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) || 40;
  }

  /** The rows to draw: the first, and the one after the last. */
  get shown() {
    // Pseudo-elements of the body take the space of the rows above and below.
    return rowsOn({ top: this.body.getBoundingClientRect().top, height: window.innerHeight, row: this.rowHeight, total: this.#total });
  }

  /** @param {number} total @param {number} first @param {(ListRow | null)[]} rows from `first` on; null is not loaded yet */
  draw(total, first, rows) {
    this.#total = total;
    this.element.hidden = total === 0;
    mark(this.element, "aria-rowcount", String(total + 1));
    this.element.style.setProperty("--above", `${first * this.rowHeight}px`);
    this.element.style.setProperty("--below", `${(total - first - rows.length) * this.rowHeight}px`);
    const placed = rows.map((row, index) => ({ row, index: first + index }));
    keyed(this.body, placed, {
      key: ({ row, index }) => (row ? this.key(row) : `#${index}`),
      make: () => h("tr"),
      update: (element, { row, index }) => {
        mark(element, "aria-rowindex", String(index + 2));
        mark(element, "data-coming", row ? null : "");
        mark(element, "data-chosen", row?.chosen ? "" : null);
        render(this.cells(row), element);
      },
    });
  }
}

const ASK_MS = 2000;
const MOST = 100;

/** @template Datum */
class RunDataCache {
  /** The data of each run, and its version then. @type {Map<string, {version: number, told: Datum | null}>} */
  #held = new Map();
  /** @type {Summary[]} */
  #wanted = [];
  #ask = paced(() => this.#read(), ASK_MS);

  /** @param {string} path where the server has the data of a list of runs @param {() => void} onNews */
  constructor(path, onNews) {
    this.path = path;
    this.onNews = onNews;
  }

  /** Set the runs that are on the screen. @param {Summary[]} runs */
  setRuns(runs) {
    this.#wanted = runs;
    if (this.#stale().length) this.#ask();
  }

  /** @param {string} run @returns {Datum | null} */
  dataOf(run) {
    return this.#held.get(run)?.told ?? null;
  }

  close() {
    this.#ask.stop();
  }

  #stale() {
    return this.#wanted.filter((run) => this.#held.get(run.run_id)?.version !== run.version).slice(0, MOST);
  }

  async #read() {
    const runs = this.#stale();
    if (!runs.length || document.hidden) return;
    try {
      const answer = await get(`${this.path}?runs=${runs.map((run) => run.run_id).join(",")}`);
      const told = /** @type {Record<string, Datum | null>} */ (answer);
      for (const { run_id, version } of runs) this.#held.set(run_id, { version, told: told[run_id] ?? null });
      this.onNews();
    } catch {
      // The list itself reports that the server does not answer. A later call tries again.
    }
  }
}

/** @param {Sparkline | null} line */
export function sparkline(line) {
  const words = line ? `Scale ${line.words}` : nothing;
  return html`<span class="sparkline" title=${words}>
    <svg viewBox="0 0 96 24" role="img" class="spark" aria-label=${line ? words : "Scale: no history yet"}>
      <path class="line" d=${line?.path ?? nothing}></path>
      <path class="skips" d=${line?.skips || nothing}></path>
    </svg>
  </span>`;
}

const PAGE = 50;
const SCROLLED_MS = 100;
const GROUPS_MS = 5000;

export class List {
  title = "Runs";
  #filters;
  /** @type {string[]} */
  follows = [];
  /** Pages of rows by page number. Those off the screen may be old. @type {Map<number, Summary[]>} */
  #pages = new Map();
  #total = 0;
  #asked = "";
  #read = paced(() => this.refresh().catch(() => {}), SCROLLED_MS);
  #groups = paced(() => this.#filters.refresh().catch(() => {}), GROUPS_MS);
  /** Why training processes that report here are refused. @type {string[]} */
  #refused = [];
  #actions = new Actions(() => this.#changed());
  /** @type {RunDataCache<Sparkline>} */
  #scales = new RunDataCache("/runs/scales", () => this.tick());
  /** @type {RunDataCache<Loss>} */
  #losses = new RunDataCache("/runs/losses", () => this.tick());
  #table = new RunTable({
    onSort: (order) => this.#give({ ...this.#filters.given, ...order }, false),
    onScroll: () => this.#scrolled(),
    onChoose: (run, chosen) => this.#choose(run, chosen),
  });

  /** @param {ListFilters} given the filters in the address @param {(given: ListFilters, typed: boolean) => void} onGiven */
  constructor(given, onGiven) {
    this.onGiven = onGiven;
    const columns = columnChoice(() => {
      this.#sorted();
      this.tick();
    });
    this.#filters = new Filters(given, columns, (next, typed) => this.#give(next, typed));
    this.element = h("div", { class: "list" });
    this.#draw();
    this.#sorted();
  }

  async refresh() {
    const query = this.#filters.query;
    const asked = query.toString();
    const pages = pagesOf(...this.#table.shown, PAGE);
    const answers = await Promise.all(pages.map((page) => get(`/runs?${page ? `offset=${page * PAGE}&` : ""}limit=${PAGE}${asked && `&${asked}`}`)));
    if (asked !== this.#filters.query.toString()) return;
    if (asked !== this.#asked) this.#pages.clear();
    this.#asked = asked;
    const [first] = /** @type {RunsAnswer[]} */ (answers);
    if (!first) return;
    const [place] = this.#table.shown;
    const seen = place > 0 ? this.#at(place)?.run_id : undefined;
    this.#total = first.total;
    pages.forEach((page, index) => this.#pages.set(page, /** @type {RunsAnswer} */ (answers[index]).runs));
    if (seen !== undefined) this.#hold(seen, place);
    this.#refused = first.refused;
    this.#filters.count(this.#total);
    this.#draw();
    this.tick();
    this.#groups();
  }

  tick() {
    if (!this.#pages.size) return;
    // Before it is first drawn, the table has no rows on the screen: draw the first page.
    let [first, after] = this.#table.shown;
    if (after === 0 && this.#total > 0) [first, after] = [0, Math.min(this.#total, PAGE)];
    const seen = new Set();
    const rows = [];
    for (let place = first; place < after; place += 1) {
      const run = this.#at(place);
      // Two pages fetched at different times may have the same run.
      const drawn = run && !seen.has(run.run_id) ? run : null;
      seen.add(run?.run_id);
      rows.push(drawn && { run: drawn, scale: this.#scales.dataOf(drawn.run_id), loss: this.#losses.dataOf(drawn.run_id), chosen: this.#actions.chosen.has(drawn.run_id) });
    }
    this.#table.draw(this.#total, first, rows);
    const drawn = rows.flatMap((row) => (row ? [row.run] : []));
    this.#scales.setRuns(drawn);
    if (shownColumns().some(({ name }) => name === "Loss")) this.#losses.setRuns(drawn);
  }

  /** @param {Address} address */
  look(address) {
    if (address.page !== "list") return false;
    this.#filters.look(address.filters);
    this.#sorted();
    this.#read();
    return true;
  }

  close() {
    for (const each of [this.#read, this.#groups]) each.stop();
    for (const each of [this.#table, this.#scales, this.#losses]) each.close();
  }

  /** @param {number} place */
  #at(place) {
    return this.#pages.get(Math.floor(place / PAGE))?.[place % PAGE];
  }

  /** Keep the rows in place when new runs appear above them. @type {(run: string, before: number) => void} */
  #hold(run, before) {
    const { sort = "started", order = "" } = this.#filters.given;
    if (sort !== "started" || order === "ascending") return;
    for (const [page, runs] of this.#pages) {
      const now = runs.findIndex((each) => each.run_id === run);
      if (now < 0 || page * PAGE + now === before) continue;
      this.tick();
      window.scrollBy({ top: (page * PAGE + now - before) * this.#table.rowHeight, behavior: "instant" });
      return;
    }
  }

  #draw() {
    const { narrow, given } = this.#filters;
    const bare = !narrow && given["archived"] !== "true";
    const none = this.#pages.size > 0 && this.#total === 0;
    this.#filters.element.hidden = this.#total === 0 && bare;
    render(
      html`
        <h1>Runs</h1>
        ${this.#filters.element}
        ${this.#actions.element}
        ${notices(this.#refused.map((why) => `The server rejects the records of a training process: ${why} The process keeps them and retries.`))}
        ${this.#table.element}
        <div class="first" ?hidden=${!none || !bare}>${FIRST_RUN}</div>
        <div class="first" ?hidden=${!none || bare}>
          <p>${narrow ? "No run matches." : "No archived runs."}</p>
          <button type="button" @click=${() => this.#filters.clear()}>Show all runs</button>
        </div>
      `,
      this.element,
    );
  }

  #sorted() {
    const { sort = "started", order = "" } = this.#filters.given;
    this.#table.arrange({ sort, order: order || "descending" }, shownColumns());
  }

  #scrolled() {
    this.tick();
    this.#read();
  }

  #changed() {
    this.tick();
    this.#read();
    this.#groups();
  }

  /** @type {(id: string, chosen: boolean) => void} */
  #choose(id, chosen) {
    const run = [...this.#pages.values()].flat().find((each) => each.run_id === id);
    if (run) this.#actions.choose(run, chosen);
    this.tick();
  }

  /** @type {(given: ListFilters, typed: boolean) => void} */
  #give(given, typed) {
    window.scrollTo({ top: 0 });
    this.onGiven(given, typed);
  }
}

const FIRST_RUN = html`
  <p>No runs yet. Change one line of a training script, and start it:</p>
  <pre tabindex="0"><code>${LINES.join("\n")}</code></pre>
  <p>The run appears here after its first step. To see one now, let ampmon train a small model:</p>
  <pre tabindex="0"><code>ampmon demo</code></pre>
`;
