// The tables of a run's skipped steps, with their culprits, and of its events. Newest first.

import { dotted, html, nothing } from "./dom.js";
import { clock, count, plural, power, revived } from "./format.js";
import { about } from "./range.js";
import { get } from "./server.js";
import { Ledger, ROWS_MAX } from "./table.js";

const NAMED = 4;
const ORIGINS = { input: "the model's input", forward: "forward", loss: "the loss", backward: "backward" };
const LOSSES = { finite: "loss finite", overflowed: "loss finite, loss × scale overflowed", not_finite: "loss not finite" };
const ORDERS = { learned: "in backward order (measured)", assumed: "in backward order (estimated)" };
/** @type {Record<string, string>} */
const CAUSES = { inf: "✕ inf", nan: "◆ NaN", "inf+nan": "✕ inf, ◆ NaN" };

/** @type {Column<HappenedEvent>[]} */
const EVENT_COLUMNS = [
  { name: "Time", tight: true, cell: ({ time }) => clock(time) },
  { name: "Event", cell: ({ kind }) => kind.replaceAll("_", " ") },
  { name: "Before step", number: true, opens: true, cell: ({ step }) => (step === null ? "" : count(step)) },
  { name: "Rank", number: true, cell: ({ rank }) => count(rank) },
  { name: "Details", cell: ({ detail }) => details(detail) },
];

/** @type {(path: string, charts: Charts) => Ledger<SharedSkip>} */
export function skipLedger(path, charts) {
  return stepLedger(charts, {
    name: "skips",
    title: "Skipped steps",
    columns: [
      { name: "Step", number: true, opens: true, cell: (skip) => count(skip.step) },
      { name: "Optimizer", cell: (skip) => [skip.optimizer, skip.ranks_words].filter(Boolean).join(", ") },
      { name: "Cause", cell: causeOf },
      { name: "First to overflow", cell: (skip) => culpritsOf(skip, (parameter) => charts.go({ ...charts.view, parameter })) },
      { name: "Scale", tight: true, cell: movedScale },
    ],
    key: ({ step, scaler, optimizer }) => JSON.stringify([step, scaler, optimizer]),
    read: (limit) => newest(path, "skips", limit, "No steps skipped.", "&shared=true"),
  });
}

/** @type {(path: string, charts: Charts) => Ledger<HappenedEvent>} */
export function eventLedger(path, charts) {
  const none = "No event yet. Starts, ends and manual changes are listed here.";
  return stepLedger(charts, {
    name: "events",
    title: "Events",
    columns: EVENT_COLUMNS,
    key: ({ stream, attempt, seq }) => [stream, attempt, seq].join(" "),
    read: (limit) => newest(path, "events", limit, none),
  });
}

/** A table of steps. A click on a row moves the charts, and the rows of the step that the charts mark are marked.
 * @template {{step: number | null}} Row @param {Charts} charts @param {LedgerOptions<Row>} of */
function stepLedger(charts, of) {
  return new Ledger({
    onRow: ({ step }) => step !== null && charts.go(about(charts.view, step)),
    isCurrent: ({ step }) => step !== null && charts.view.x === "step" && step === charts.view.at,
    most: Infinity,
    ...of,
  });
}

/** Read the newest rows, in as many calls as it takes. @template Row
 * @param {string} path the run's @param {string} name of the rows @param {number} limit @param {string} none @param {string} [query]
 * @returns {Promise<Read<Row>>} */
async function newest(path, name, limit, none, query = "") {
  /** @type {Row[]} */
  const listed = [];
  let cursor = "";
  let next = null;
  do {
    const most = Math.min(limit - listed.length, ROWS_MAX);
    const answer = await get(`${path}/${name}?limit=${most}${query}${cursor}`);
    const read = /** @type {Record<string, Row[]> & {next: string | null}} */ (answer);
    // For several ranks the server may send more rows than asked for.
    listed.push(...(read[name] ?? []));
    next = read.next;
    cursor = `&cursor=${encodeURIComponent(next ?? "")}`;
  } while (next !== null && listed.length < limit);
  const rows = listed.slice(0, limit);
  return { rows, more: next === null && rows.length === listed.length ? "" : "Older", words: rows.length ? "" : none };
}

/** @param {SharedSkip} skip */
function movedScale(skip) {
  return `${power(revived(skip.scale, skip.scale_kind))} → ${power(revived(skip.scale_after, skip.scale_after_kind))}`;
}

/** @param {SharedSkip} skip */
function causeOf({ cause, origin, origin_module, loss }) {
  const at = origin_module === null ? [] : [origin === "forward" ? ", first in " : ", first at ", dotted(origin_module)];
  const began = origin === null ? [] : [` in ${ORIGINS[origin]}`, ...at];
  const told = loss === null ? nothing : html`<span data-loss=${loss}>${LOSSES[loss]}</span>`;
  return html`<span data-origin=${origin ?? nothing}><span data-cause=${cause}>${CAUSES[cause] ?? "not known"}</span>${began}${told}</span>`;
}

/** @type {(skip: SharedSkip, open: (parameter: string) => void) => string | TemplateResult} */
function culpritsOf({ culprit_parameters, culprits, culprit_order }, open) {
  const total = Math.max(culprit_parameters, culprits.length);
  if (total === 0) return "not known";
  const rest = total - Math.min(NAMED, culprits.length);
  const named = culprits.slice(0, NAMED).map((culprit) => {
    const go = () => open(culprit.parameter);
    return html`<li><button type="button" class="opens" title="Open this parameter" @click=${go}>${dotted(culprit.parameter)}</button> ${countsOf(culprit)}</li>`;
  });
  return html`<ol class="culprits">
    ${named}
    ${rest > 0 ? html`<li class="rest">and ${plural(rest, "more parameter")}</li>` : nothing}
    ${total > 1 ? html`<li class="rest">${ORDERS[culprit_order]}</li>` : nothing}
  </ol>`;
}

/** @param {Culprit} culprit */
function countsOf({ inf, nan }) {
  if (inf === null && nan === null) return "not counted";
  return [inf && `${count(inf)} inf`, nan && `${count(nan)} NaN`].filter(Boolean).join(", ");
}

/** @param {Record<string, unknown>} detail */
function details(detail) {
  const words = Object.entries(detail).map(([name, value]) => `${name.replaceAll("_", " ")}: ${typeof value === "string" ? value : JSON.stringify(value)}`);
  return words.join("; ");
}
