// A table of columns, one under a heading that shows a few rows until the reader asks for more, and those of a run's
// skipped steps and events.

import { dotted, h, html, keyed, mark, moreOf, nothing, render, renderForm, term, withCode } from "./dom.js";
import { clock, count } from "./format.js";
import { about } from "./range.js";
import { get, refusalOf } from "./server.js";

/** The most rows that the server lists at once. */
const ROWS_MAX = 1000;

/** @template Row */
export class Table {
  body = h("tbody");
  #head = h("tr", { "aria-rowindex": 1 });
  /** @type {WeakMap<Element, Row>} */
  #rows = new WeakMap();
  /** @type {Order} */
  #order = { sort: "", order: "" };

  /** @param {TableOptions<Row>} of */
  constructor(of) {
    this.of = of;
    this.columns = of.columns;
    const [caption, head] = [h("caption", { class: "unseen" }, of.caption), h("thead", {}, this.#head)];
    this.element = h("table", { class: of.onRow && "opening", hidden: true }, caption, head, this.body);
    this.body.addEventListener("click", ({ target }) => target instanceof Element && this.#open(target));
    this.arrange();
  }

  /** @param {Row[]} rows without any, the table is hidden */
  update(rows) {
    this.element.hidden = rows.length === 0;
    const update = (/** @type {HTMLElement} */ element, /** @type {Row} */ row) => {
      this.#rows.set(element, row);
      render(this.cells(row), element);
    };
    keyed(this.body, rows, { key: this.of.key, make: () => h("tr"), update });
    this.point();
  }

  /** Mark the rows that are shown elsewhere on the page. */
  point() {
    for (const element of this.body.children) {
      const row = this.#rows.get(element);
      mark(element, "aria-current", row !== undefined && this.of.isCurrent?.(row) ? "true" : null);
    }
  }

  /** Set the columns, and mark the sorted one. @type {(order?: Order, columns?: Column<Row>[]) => void} */
  arrange(order = this.#order, columns = this.columns) {
    this.#order = order;
    this.columns = columns;
    const headings = columns.map((column) => {
      const sorted = column.sort && column.sort === order.sort ? order.order : nothing;
      return html`<th scope="col" class=${classOf(column)} data-name=${column.name} aria-sort=${sorted}>${this.#heading(column)}</th>`;
    });
    render(headings, this.#head);
  }

  /** @param {Column<Row>} column */
  #heading(column) {
    const { name, sort, first, definition = nothing, section = "" } = column;
    const { onSort } = this.of;
    if (!sort || !onSort) return term(name, column);
    const [usual, other] = first ? ["ascending", "descending"] : ["descending", "ascending"];
    const turn = () => onSort({ sort, order: this.#order.sort === sort && this.#order.order === usual ? other : usual });
    const more = definition === nothing ? nothing : moreOf(section);
    return html`<button type="button" class="sort" data-definition=${definition} data-more=${more} aria-description=${definition} @click=${turn}>${name}</button>`;
  }

  /** @param {Element} target */
  #open(target) {
    const inside = target.closest("button, a, summary, input, tr");
    const element = target.closest("tr");
    const row = element && this.#rows.get(element);
    // A click on a control in a row does not open the row, and neither does the end of a text selection.
    const opens = inside === element ? !String(getSelection()) : inside?.matches("[data-opens]");
    if (row !== null && row !== undefined && opens) this.of.onRow?.(row);
  }

  /** @param {Row | null} row null is not loaded yet */
  cells(row) {
    return this.columns.map((column) => {
      const content = row && column.cell(row);
      const opens = column.opens && content && this.of.onRow;
      const shown = opens ? html`<button type="button" class="opens" data-opens>${content}</button>` : content;
      const title = (row && column.title?.(row)) ?? nothing;
      return html`<td data-name=${column.name} class=${classOf(column)} dir=${column.named ? "auto" : nothing} title=${title}>${shown}</td>`;
    });
  }
}

/** @param {{number?: boolean, tight?: boolean}} column */
const classOf = ({ number, tight }) => number ? "number" : tight ? "tight" : nothing;

/** @template Row */
export class Ledger {
  /** @type {Read<Row>} */
  #read = { rows: [], more: "", words: "Loading…" };

  /** @param {LedgerOptions<Row>} of */
  constructor(of) {
    this.of = of;
    this.limit = of.limit ?? 10;
    this.most = of.most ?? ROWS_MAX;
    this.table = new Table({ caption: of.title, ...of });
    this.element = h("section", { class: "ledger", "data-ledger": of.name ?? of.title });
    this.#draw();
  }

  /** Fetch and show the rows, or say why the server refused. Rejects if the server does not answer. */
  async refresh() {
    const { limit } = this;
    const read = await this.of.read(limit).catch((error) => ({ ...this.#read, words: refusalOf(error) }));
    // An answer may be out of date, and the rows of a larger limit may have come first.
    if (read === null || limit !== this.limit) return;
    this.#read = read;
    this.table.update(read.rows);
    this.#draw();
  }

  /** Ignore errors: a later refresh fetches again. */
  #grow() {
    this.limit = Math.min(5 * this.limit, this.most);
    void this.refresh().catch(() => {});
  }

  #draw() {
    const { more, words, count = "", caption = "" } = this.#read;
    renderForm(
      html`
        <header><h2>${this.of.title}</h2>${this.of.beside?.() ?? nothing}<span class="more">${count}</span></header>
        <p class="caption" ?hidden=${!caption}>${caption}</p>
        <p class="empty" ?hidden=${!words}>${words}</p>
        ${this.table.element}
        <button type="button" ?hidden=${!more || this.limit === this.most} @click=${() => this.#grow()}>${more}</button>
      `,
      this.element,
      "header input",
    );
  }
}

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
      { name: "Scale", tight: true, cell: ({ words }) => words.scale },
    ],
    key: ({ step, scaler, optimizer }) => JSON.stringify([step, scaler, optimizer]),
    read: (limit) => newest(path, "skips", limit, "No steps skipped.", "&shared=true"),
  });
}

/** @type {(path: string, charts: Charts) => Ledger<HappenedEvent>} */
export function eventLedger(path, charts) {
  return stepLedger(charts, {
    name: "events",
    title: "Events",
    columns: [
      { name: "Time", tight: true, cell: ({ time }) => clock(time) },
      { name: "Event", cell: ({ kind }) => kind.replaceAll("_", " ") },
      { name: "Before step", number: true, opens: true, cell: ({ step }) => (step === null ? "" : count(step)) },
      { name: "Rank", number: true, cell: ({ rank }) => count(rank) },
      { name: "Details", cell: ({ detail }) => details(detail) },
    ],
    key: ({ stream, attempt, seq }) => [stream, attempt, seq].join(" "),
    read: (limit) => newest(path, "events", limit, "No events. Starts, ends and manual changes are listed here."),
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
function causeOf({ cause, origin, loss, words }) {
  const lossWords = html`<span data-loss=${loss}>${words.loss}</span>`;
  return html`<span data-origin=${origin ?? nothing}><span data-cause=${cause}>${words.cause}</span>${withCode(words.origin)}${loss && lossWords}</span>`;
}

/** @type {(skip: SharedSkip, open: (parameter: string) => void) => TemplateResult} */
function culpritsOf({ words }, open) {
  const named = words.culprits.map(([parameter, counts]) => {
    const go = () => open(parameter);
    return html`<li><button type="button" class="opens" title="Open this parameter" @click=${go}>${dotted(parameter)}</button> ${counts}</li>`;
  });
  return html`<ol class="culprits">${named}${words.others.map((each) => html`<li class="rest">${each}</li>`)}</ol>`;
}

/** @param {Record<string, unknown>} detail */
function details(detail) {
  return Object.entries(detail).map(([name, value]) => `${name.replaceAll("_", " ")}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join("; ");
}
