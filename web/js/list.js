// The page of all runs, searched, filtered and sorted by the server. Without runs it says how to start one.

import { get } from "./api.js";
import { h } from "./dom.js";
import { columnChoice, shownColumns } from "./list-choice.js";
import { Actions } from "./list-actions.js";
import { Filters } from "./list-filters.js";
import { RunDataCache } from "./run-data.js";
import { RunTable } from "./list-table.js";
import { html, render } from "./lit-html.js";
import { notices } from "./notices.js";
import { paced } from "./pace.js";
import { pagesOf } from "./windowed.js";
import { LINES } from "./words.js";

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
