// The page of all runs, searched, filtered and sorted by the server. Only the rows on the screen are on the page.

import { copyOf, h, html, keyed, mark, notices, render, renderForm } from "./dom.js";
import { ALL, columnChoice, filterBar, filterQuery, isNarrow, shownColumns } from "./list-columns.js";
import { paced } from "./pace.js";
import { pagesOf, rowsOn } from "./range.js";
import { Actions } from "./run-actions.js";
import { get } from "./server.js";
import { Table } from "./table.js";

const PAGE = 50;
const GROUPS_MS = 5000;
const ASK_MS = 2000;
const ASKED_MAX = 100;

/** The table of runs. ARIA attributes give the places of its rows. @extends {Table<ListRow>} */
class RunTable extends Table {
  #total = 0;

  /** @param {(order: Order) => void} onSort @param {(run: string, chosen: boolean) => void} onChoose */
  constructor(onSort, onChoose) {
    super({ caption: "Runs", columns: shownColumns(), key: ({ run }) => run.run_id, onSort });
    this.element.classList.add("runs");
    this.body.addEventListener("change", ({ target }) => target instanceof HTMLInputElement && onChoose(target.value, target.checked));
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
    keyed(this.body, rows.map((row, index) => ({ row, index: first + index })), {
      key: ({ row, index }) => (row ? this.of.key(row) : `#${index}`),
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

/** Data of runs beside their summaries (sparklines, losses), fetched for rows on the screen when a run has changed.
 * @template Datum @param {string} path where the server has the data of a list of runs @param {List} list
 * @returns {RunData<Datum>} */
function runData(path, list) {
  /** The data of each run, and its version then. @type {Map<string, {version: number, datum: Datum | null}>} */
  const held = new Map();
  /** The runs on the screen. @type {Summary[]} */
  let wanted = [];
  const stale = () => (list.element.isConnected ? wanted : []).filter((run) => held.get(run.run_id)?.version !== run.version).slice(0, ASKED_MAX);
  const ask = paced(async () => {
    const runs = stale();
    if (!runs.length || document.hidden) return;
    // The list itself reports that the server does not answer. A later call tries again.
    const answer = await get(`${path}?runs=${runs.map((run) => run.run_id).join(",")}`).catch(() => null);
    if (answer === null) return;
    const data = /** @type {Record<string, Datum | null>} */ (answer);
    for (const { run_id, version } of runs) held.set(run_id, { version, datum: data[run_id] ?? null });
    list.tick();
  }, ASK_MS);
  return {
    of: ({ run_id }) => held.get(run_id)?.datum ?? null,
    setRuns: (runs) => {
      wanted = runs;
      if (stale().length) ask();
    },
  };
}

export class List {
  title = "Runs";
  element = h("div", { class: "list" });
  /** The filters of the address. @type {ListFilters} */
  given = {};
  #firstRun = copyOf("first-run");
  /** @type {Groups} */
  #groups = { projects: {}, tags: {} };
  /** Pages of rows by page number. Those off the screen may be old. @type {Map<number, Summary[]>} */
  #pages = new Map();
  #total = 0;
  #asked = "";
  /** Why training processes that report here are refused. @type {string[]} */
  #refused = [];
  #readGroups = paced(() => this.#fetchGroups().catch(() => {}), GROUPS_MS);
  actions = new Actions(() => this.#scrolled());
  /** @type {RunData<Sparkline>} */
  #scales = runData("/runs/scales", this);
  /** @type {RunData<Loss>} */
  #losses = runData("/runs/losses", this);
  #table = new RunTable((order) => this.#give(order), (run, chosen) => this.#choose(run, chosen));
  #columns = columnChoice(() => {
    this.#sorted();
    this.tick();
  });

  /** @param {Host} host */
  constructor(host) {
    this.host = host;
    window.addEventListener("scroll", this.#scrolled, { passive: true });
    window.addEventListener("resize", this.#scrolled);
  }

  async refresh() {
    const asked = filterQuery(this.given).toString();
    const [from, after] = pagesOf(...this.#table.shown, PAGE);
    // One answer for all pages: between two, a new run may move the rows of the second.
    const range = `${from ? `offset=${from * PAGE}&` : ""}limit=${(after - from) * PAGE}`;
    const { total, runs, refused } = /** @type {RunsAnswer} */ (await get(`/runs?${range}${asked && `&${asked}`}`));
    if (asked !== filterQuery(this.given).toString()) return;
    if (asked !== this.#asked) this.#pages.clear();
    this.#asked = asked;
    const [place] = this.#table.shown;
    const seen = place > 0 ? this.#at(place)?.run_id : undefined;
    this.#total = total;
    for (let page = from; page < after; page += 1) this.#pages.set(page, runs.slice((page - from) * PAGE, (page - from + 1) * PAGE));
    for (const run of runs) if (this.actions.chosen.has(run.run_id)) this.actions.chosen.set(run.run_id, run);
    if (seen !== undefined) this.#hold(seen, place);
    this.#refused = refused;
    this.#draw();
    this.tick();
    this.#readGroups();
  }

  tick() {
    if (!this.#pages.size || !this.element.isConnected) return;
    // Before it is first drawn, the table has no rows on the screen: draw the first page.
    let [first, after] = this.#table.shown;
    if (after === 0 && this.#total > 0) [first, after] = [0, Math.min(this.#total, PAGE)];
    // Two pages fetched at different times may have the same run.
    const seen = new Set();
    const rows = [];
    for (let place = first; place < after; place += 1) {
      const run = this.#at(place);
      const known = run && !seen.has(run.run_id);
      rows.push(known ? { run, scale: this.#scales.of(run), loss: this.#losses.of(run), chosen: this.actions.chosen.has(run.run_id) } : null);
      seen.add(run?.run_id);
    }
    this.#table.draw(this.#total, first, rows);
    const drawn = rows.flatMap((row) => row?.run ?? []);
    this.#scales.setRuns(drawn);
    if (shownColumns().some(({ name }) => name === "Loss")) this.#losses.setRuns(drawn);
  }

  /** @param {Address} address */
  look(address) {
    if (address.page !== "list") return false;
    this.given = address.filters;
    this.#draw();
    this.#sorted();
    this.host.refresh.now();
    return true;
  }

  /** @param {number} place */
  #at(place) {
    return this.#pages.get(Math.floor(place / PAGE))?.[place % PAGE];
  }

  /** Keep the rows in place when new runs appear above them. @type {(run: string, before: number) => void} */
  #hold(run, before) {
    const { sort = "started", order = "" } = this.given;
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
    const narrow = isNarrow(this.given);
    const bare = !narrow && this.given["archived"] !== "true";
    const none = this.#pages.size > 0 && this.#total === 0 && this.#asked === filterQuery(this.given).toString();
    this.#firstRun.hidden = !none || !bare;
    const list = { groups: this.#groups, total: this.#total, columns: this.#columns };
    renderForm(
      html`
        <h1 tabindex="-1">Runs</h1>
        <div class="filters" role="search" ?hidden=${this.#total === 0 && bare}>${filterBar(this.given, list, (changed, typed) => this.#give(changed, typed))}</div>
        ${this.actions.element}
        ${notices(this.#refused.map((why) => `The server rejects the records of a training process: ${why} The process keeps them and retries.`))}
        ${this.#table.element}
        <p class="empty" ?hidden=${this.#pages.size > 0}>Loading…</p>
        ${this.#firstRun}
        <div class="first" ?hidden=${!none || bare}>
          <p>${narrow ? "No run matches." : "No archived runs."}</p>
          <button type="button" @click=${() => this.#give(ALL)}>Show all runs</button>
        </div>
      `,
      this.element,
      ".filters :is(select, [type=search])",
    );
  }

  #sorted() {
    const { sort = "started", order = "" } = this.given;
    this.#table.arrange({ sort, order: order || "descending" }, shownColumns());
  }

  #scrolled = () => {
    if (!this.element.isConnected) return;
    this.tick();
    this.host.refresh();
  };

  /** Fetch the projects and tags. Rejects if the server does not answer. */
  async #fetchGroups() {
    if (!this.element.isConnected) return;
    this.#groups = /** @type {Groups} */ (await get(`/runs/groups${this.given["archived"] === "true" ? "?archived=true" : ""}`));
    this.#draw();
  }

  /** @type {(id: string, chosen: boolean) => void} */
  #choose(id, chosen) {
    const run = [...this.#pages.values()].flat().find((each) => each.run_id === id);
    if (run) this.actions.choose(run, chosen);
    this.tick();
  }

  /** Change filters or the order. @type {(changed: ListFilters, typed?: boolean) => void} */
  #give(changed, typed) {
    const all = Object.entries({ ...this.given, ...changed }).filter(([, value]) => value !== "");
    window.scrollTo({ top: 0 });
    this.host.go({ page: "list", filters: Object.fromEntries(all) }, typed);
  }
}
