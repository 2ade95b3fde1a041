// The tables of a run's skipped steps, with their culprits, and of its events. Newest first.

import { dotted, html, nothing } from "./dom.js";
import { clock, count, plural, power, revived } from "./format.js";
import { about } from "./range.js";
import { pathOf } from "./run-actions.js";
import { get } from "./server.js";
import { Ledger, ROWS_MAX, Table } from "./table.js";

const NAMED = 4;
const ORIGINS = { input: "the model's input", forward: "forward", loss: "the loss", backward: "backward" };
const LOSSES = { finite: "loss finite", overflowed: "loss finite, loss × scale overflowed", not_finite: "loss not finite" };
const ORDERS = { learned: "in backward order (measured)", assumed: "in backward order (estimated)" };
/** @type {Record<string, string>} */
const CAUSES = { inf: "✕ inf", nan: "◆ NaN", "inf+nan": "✕ inf, ◆ NaN" };

/** @type {(page: Viewer) => Column<SharedSkip>[]} */
const skipColumns = ({ view, onView }) => [
  { name: "Step", number: true, opens: true, cell: (skip) => count(skip.step) },
  { name: "Optimizer", cell: (skip) => [skip.optimizer, skip.ranks_words].filter(Boolean).join(", ") },
  { name: "Cause", cell: causeOf },
  { name: "First to overflow", cell: (skip) => culpritsOf(skip, (parameter) => onView({ ...view(), parameter })) },
  { name: "Scale", tight: true, cell: movedScale },
];

/** @type {Column<HappenedEvent>[]} */
const EVENT_COLUMNS = [
  { name: "Time", tight: true, cell: ({ time }) => clock(time) },
  { name: "Event", cell: ({ kind }) => kind.replaceAll("_", " ") },
  { name: "Before step", number: true, opens: true, cell: ({ step }) => (step === null ? "" : count(step)) },
  { name: "Rank", number: true, cell: ({ rank }) => count(rank) },
  { name: "Details", cell: ({ detail }) => details(detail) },
];

/** A table of steps. A click on a row moves the charts. @template {{step: number | null}} Row @extends {Ledger<Row>} */
class StepLedger extends Ledger {
  /** @param {string} run @param {{name: string, title: string, none: string, query?: string}} what @param {Column<Row>[]} columns
   * @param {(row: Row) => string} key @param {Viewer} page */
  constructor(run, { name, title, none, query = "" }, columns, key, page) {
    const table = new Table(title, columns, key, { onRow: ({ step }) => step !== null && page.onView(about(page.view(), step)) });
    super(name, title, table, async (limit) => {
      /** @type {Row[]} */
      const listed = [];
      let cursor = "";
      let next = null;
      do {
        const most = Math.min(limit - listed.length, ROWS_MAX);
        const answer = await get(`${pathOf({ run_id: run })}/${name}?limit=${most}${query}${cursor}`);
        const read = /** @type {Record<string, Row[]> & {next: string | null}} */ (answer);
        // For several ranks the server may send more rows than asked for.
        listed.push(...(read[name] ?? []));
        next = read.next;
        cursor = `&cursor=${encodeURIComponent(next ?? "")}`;
      } while (next !== null && listed.length < limit);
      const rows = listed.slice(0, limit);
      return { rows, more: next === null && rows.length === listed.length ? "" : "Older", words: rows.length ? "" : none };
    }, { most: Infinity });
    this.page = page;
  }

  async refresh() {
    await super.refresh();
    this.point();
  }

  /** Mark the rows of the step that the charts mark. */
  point() {
    const { at, x } = this.page.view();
    this.table.point(({ step }) => step !== null && x === "step" && step === at);
  }
}

/** @type {(run: string, page: Viewer) => StepLedger<SharedSkip>} */
export function skipLedger(run, page) {
  const what = { name: "skips", title: "Skipped steps", none: "No steps skipped.", query: "&shared=true" };
  return new StepLedger(run, what, skipColumns(page), ({ step, scaler, optimizer }) => JSON.stringify([step, scaler, optimizer]), page);
}

/** @type {(run: string, page: Viewer) => StepLedger<HappenedEvent>} */
export function eventLedger(run, page) {
  const what = { name: "events", title: "Events", none: "No event yet. Starts, ends and manual changes are listed here." };
  return new StepLedger(run, what, EVENT_COLUMNS, ({ stream, attempt, seq }) => [stream, attempt, seq].join(" "), page);
}

/** @param {Skip} skip */
function movedScale(skip) {
  return `${power(revived(skip.scale, skip.scale_kind))} → ${power(revived(skip.scale_after, skip.scale_after_kind))}`;
}

/** @param {Skip} skip */
function causeOf({ cause, origin, origin_module, loss }) {
  const at = origin_module === null ? [] : [origin === "forward" ? ", first in " : ", first at ", dotted(origin_module)];
  const began = origin === null ? [] : [` in ${ORIGINS[origin]}`, ...at];
  const told = loss === null ? nothing : html`<span data-loss=${loss}>${LOSSES[loss]}</span>`;
  return html`<span data-origin=${origin ?? nothing}><span data-cause=${cause}>${CAUSES[cause] ?? "not known"}</span>${began}${told}</span>`;
}

/** @type {(skip: Skip, open: (parameter: string) => void) => ReturnType<Column<Skip>["cell"]>} */
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
