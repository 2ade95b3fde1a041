// The columns of the list of runs: what each is called, sorts by, and says of a run.

import { badge, setBadge } from "./badge.js";
import { h, keyed, mark, say } from "./dom.js";
import { ago, count, measure, percent, plural, power, powerOfTwo, revived } from "./format.js";
import { clock } from "./ledger.js";
import { setSparkline, sparkline } from "./list-scales.js";
import { setVerdict, verdict } from "./verdict.js";

/** @import { Summary } from "../types/page.js" */
/** @import { Loss, Sparkline } from "./list-scales.js" */

/** @typedef {{run: Summary, scale: Sparkline | null, loss: Loss | null, chosen: boolean}} Row */

/**
 * `sort` is what the server calls it, `first` the order that a first click asks for.
 * Without `sort` it sorts by nothing; `rare` is one that is shown only where it is chosen.
 * @typedef {{name: string, sort?: string, rare?: true, first?: "ascending", number?: boolean,
 *   make?: () => Node[], write: (cell: HTMLElement, row: Row) => void}} Column
 */

/** @type {Column[]} */
export const COLUMNS = [
  { name: "Run", sort: "name", first: "ascending", make: named, write: writeName },
  {
    name: "Status",
    sort: "status",
    first: "ascending",
    make: () => [badge()],
    write: (cell, { run }) => cell.firstElementChild && setBadge(cell.firstElementChild, run.status),
  },
  { name: "Project", sort: "project", first: "ascending", write: (cell, { run }) => titled(cell, run.project) },
  { name: "Owner", sort: "owner", rare: true, first: "ascending", write: (cell, { run }) => titled(cell, run.owner) },
  { name: "Ranks", sort: "ranks", rare: true, number: true, write: (cell, { run }) => say(cell, count(run.ranks)) },
  { name: "Steps", sort: "updates", number: true, write: (cell, { run }) => say(cell, count(run.updates)) },
  { name: "Loss", number: true, write: writeLoss },
  { name: "Scale now", sort: "scale", number: true, make: () => [sparkline(), h("span", { class: "now" })], write: writeScale },
  { name: "Skipped", sort: "skipped", number: true, write: writeSkipped },
  {
    name: "Subnormal now",
    sort: "subnormal",
    number: true,
    write: (cell, { run }) => say(cell, percent(run.subnormal_fraction)),
  },
  { name: "Diagnosis", sort: "severity", make: () => [verdict()], write: writeVerdict },
  { name: "Age", sort: "started", number: true, write: writeAge },
];

function named() {
  const tick = h("input", { type: "checkbox" });
  const tags = h("span", { class: "tags" });
  const firing = h("span", { class: "firing", role: "img", hidden: true }, "◉");
  return [h("div", { class: "named" }, h("label", { class: "tick" }, tick), h("a", { dir: "auto" }), firing, tags)];
}

/**
 * @param {HTMLElement} cell
 * @param {Row} row
 */
function writeName(cell, { run, chosen }) {
  const [label, link, firing, tags] = cell.firstElementChild?.children ?? [];
  const tick = label?.firstElementChild;
  if (!(tick instanceof HTMLInputElement) || !link || !(firing instanceof HTMLElement) || !(tags instanceof HTMLElement)) return;
  tick.checked = chosen;
  mark(tick, "aria-label", `Select ${run.name}`);
  mark(tick, "value", run.run_id);
  mark(link, "href", `#/runs/${encodeURIComponent(run.run_id)}`);
  mark(link, "title", run.name);
  say(link, run.name);
  firing.hidden = !run.firing;
  const alarm = run.firing ? `${plural(run.firing, "alert fires", "alerts fire")}, and nobody has acknowledged that` : null;
  mark(firing, "title", alarm);
  mark(firing, "aria-label", alarm);
  mark(tags, "title", run.tags.join(", ") || null);
  keyed(tags, [...new Set(run.tags)], {
    key: (tag) => tag,
    make: (tag) => h("span", { class: "tag", dir: "auto" }, tag),
  });
}

/**
 * @param {HTMLElement} cell
 * @param {Row} row
 */
function writeScale(cell, { run, scale }) {
  const [line, now] = cell.children;
  if (!line || !now) return;
  setSparkline(line, scale);
  const held = revived(run.scale, run.scale_kind);
  say(now, run.disabled ? "off" : power(held));
  mark(now, "title", run.disabled ? "This scaler is disabled: it scales nothing." : powerOfTwo(held));
}

/**
 * @param {HTMLElement} cell
 * @param {Row} row
 */
function writeLoss(cell, { loss }) {
  const least = loss?.least == null ? "" : ` (min ${measure(loss.least)})`;
  say(cell, loss ? `${measure(revived(loss.value, loss.kind))}${least}` : "–");
  mark(cell, "title", loss ? `${loss.name}: newest and least` : "No loss is logged");
}

/**
 * @param {HTMLElement} cell
 * @param {Row} row
 */
function writeSkipped(cell, { run }) {
  const rate = run.skip_rate === null ? "" : ` (${percent(run.skip_rate)})`;
  say(cell, `${count(run.skipped)}${rate}`);
  mark(cell, "title", `${count(run.skipped)} of ${count(run.updates)} steps skipped`);
}

/**
 * @param {HTMLElement} cell
 * @param {Row} row
 */
function writeVerdict(cell, { run: { severity, verdict, updates } }) {
  const element = cell.firstElementChild;
  if (!(element instanceof HTMLElement)) return;
  // Without an update there is nothing to be healthy.
  element.hidden = verdict === null || (severity === null && updates === 0);
  if (verdict === null) return;
  setVerdict(element, severity, severity === null ? undefined : verdict.replaceAll("`", ""));
  mark(element, "title", severity === null ? null : `${severity}: ${verdict}`);
}

/**
 * @param {HTMLElement} cell
 * @param {Row} row
 */
function writeAge(cell, { run }) {
  say(cell, ago(Date.now() / 1000 - run.started / 1e6));
  mark(cell, "title", `Started ${clock(run.started)}`);
}

/**
 * @param {HTMLElement} cell
 * @param {string} text
 */
function titled(cell, text) {
  say(cell, text);
  mark(cell, "title", text);
  mark(cell, "dir", "auto");
}
