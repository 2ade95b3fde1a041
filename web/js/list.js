// The page of all runs: a row for each, newest first; and how to start the first one.

import { get } from "./api.js";
import { badge, setBadge } from "./badge.js";
import { h, keyed, mark, say } from "./dom.js";
import { ago, count, percent, powerOfTwo, revived } from "./format.js";
import { clock } from "./ledger.js";
import { Notices } from "./notices.js";
import { setVerdict, verdict } from "./verdict.js";
import { LINES } from "./words.js";

/** @import { Address, Summary } from "../types/page.js" */

const COLUMNS = ["Run", "Project", "Status", "Diagnosis", "Scale now", "Skipped", "Subnormal now", "Updates", "Started"];
const NUMBERS = new Set(["Scale now", "Skipped", "Subnormal now", "Updates"]);

export class List {
  #body = h("tbody");
  #table = h(
    "table",
    { class: "runs", hidden: true },
    h("caption", { class: "unseen" }, "Runs, newest first"),
    h("thead", {}, h("tr", {}, ...COLUMNS.map((name) => h("th", { scope: "col", class: classOf(name) }, name)))),
    this.#body,
  );
  #empty = h("div", { class: "first", hidden: true }, ...firstRun());
  #more = h("button", { type: "button", hidden: true, onclick: () => void this.#older() }, "Older runs");
  #notices = new Notices();
  element = h("div", {}, h("h1", {}, "Runs"), this.#notices.element, this.#table, this.#empty, this.#more);
  title = "Runs";
  /** @type {string[]} */
  follows = [];
  /** @type {Summary[]} */
  #runs = [];
  /** @type {string | null} */
  #next = null;
  /** @type {unknown} */
  #newest = null;

  /** Fetches the newest runs. Rejects where the server does not answer. */
  async refresh() {
    const newest = await get("/runs?limit=100");
    if (newest === this.#newest) return;
    this.#newest = newest;
    const { runs, next, refused } = /** @type {{runs: Summary[], next: string | null, refused: string[]}} */ (newest);
    this.#notices.show(refused.map((why) => `A training process reports here and is refused: ${why} Its records wait there.`));
    const known = new Set(runs.map((run) => run.run_id));
    const older = this.#runs.slice(100).filter((run) => !known.has(run.run_id));
    if (older.length === 0) this.#next = next;
    this.#runs = [...runs, ...older];
    this.tick();
  }

  async #older() {
    if (this.#next === null) return;
    const page = await get(`/runs?limit=100&cursor=${encodeURIComponent(this.#next)}`);
    const { runs, next } = /** @type {{runs: Summary[], next: string | null}} */ (page);
    this.#runs = [...this.#runs, ...runs];
    this.#next = next;
    this.tick();
  }

  /** Writes the rows again: their ages change by themselves. */
  tick() {
    if (this.#newest === null) return;
    keyed(this.#body, this.#runs, { key: (run) => run.run_id, make: makeRow, update: writeRow });
    this.#table.hidden = this.#runs.length === 0;
    this.#empty.hidden = this.#runs.length > 0;
    this.#more.hidden = this.#next === null;
  }

  /** @param {Address} address */
  look(address) {
    return address.page === "list";
  }

  recolour() {}

  close() {}
}

/** @param {string} name */
function classOf(name) {
  return NUMBERS.has(name) ? "number" : null;
}

/** @param {Summary} run */
function makeRow(run) {
  const link = h("a", { href: `#/runs/${encodeURIComponent(run.run_id)}` });
  const cells = COLUMNS.map((name) => h("td", { "data-name": name, class: classOf(name) }));
  cells[0]?.append(link);
  cells[2]?.append(badge());
  cells[3]?.append(verdict());
  return h("tr", {}, ...cells);
}

/**
 * @param {HTMLElement} row
 * @param {Summary} run
 */
function writeRow(row, run) {
  const [name, project, status, judged, scale, skipped, subnormal, updates, started] = row.children;
  if (!name?.firstElementChild || !status?.firstElementChild) return;
  say(name.firstElementChild, run.name);
  setBadge(status.firstElementChild, run.status);
  if (judged?.firstElementChild instanceof HTMLElement) judge(judged.firstElementChild, run);
  const rate = run.skip_rate === null ? "" : ` (${percent(run.skip_rate)})`;
  const texts = /** @type {const} */ ([
    [project, run.project],
    [scale, run.disabled ? "off" : powerOfTwo(revived(run.scale, run.scale_kind))],
    [skipped, `${count(run.skipped)}${rate}`],
    [subnormal, percent(run.subnormal_fraction)],
    [updates, count(run.updates)],
    [started, ago(Date.now() / 1000 - run.started / 1e6)],
  ]);
  for (const [cell, text] of texts) if (cell) say(cell, text);
  if (started) mark(started, "title", clock(run.started));
}

/**
 * @param {HTMLElement} element
 * @param {Summary} run
 */
function judge(element, { severity, verdict }) {
  element.hidden = verdict === null;
  if (verdict === null) return;
  setVerdict(element, severity, severity === null ? undefined : verdict.replaceAll("`", ""));
  mark(element, "title", severity === null ? null : `${severity}: ${verdict}`);
}

function firstRun() {
  return [
    h("p", {}, "No run has reported here yet. Change one line of a training script, and start it:"),
    h("pre", {}, h("code", {}, LINES.join("\n"))),
    h("p", {}, "Its run appears here with the first update. To see one at once, let ampmon train a small model:"),
    h("pre", {}, h("code", {}, "ampmon demo")),
  ];
}
