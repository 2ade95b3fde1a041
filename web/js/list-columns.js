// The columns of the list of runs, which of them the reader chose, in which order, and the filters. The browser remembers
// the columns, and the address holds the filters.

import { queryOf } from "./address.js";
import { remember, remembered } from "./browser.js";
import { badge, DECLARED, h, html, keyed, nothing, popup, render, searchField, select, verdictBadge } from "./dom.js";
import { ago, clock, count, NAME_MAX, NONE, percent, plural, shortened, unquoted } from "./format.js";

/** @type {ListColumn[]} */
export const COLUMNS = [
  { name: "Run", sort: "name", first: "ascending", cell: nameOf },
  { name: "Status", sort: "status", first: "ascending", cell: ({ run }) => badge(run.status) },
  { name: "Project", sort: "project", first: "ascending", named: true, title: ({ run }) => run.project, cell: ({ run }) => run.project },
  { name: "Owner", sort: "owner", rare: true, first: "ascending", named: true, title: ({ run }) => run.owner, cell: ({ run }) => run.owner },
  { name: "Ranks", sort: "ranks", rare: true, number: true, cell: ({ run }) => count(run.ranks) },
  { name: "Steps", sort: "updates", number: true, cell: ({ run }) => count(run.updates) },
  {
    name: "Loss",
    number: true,
    title: ({ loss }) => (loss ? `${loss.name}: last and minimum` : "No loss logged"),
    cell: ({ loss }) => loss?.words ?? NONE,
  },
  { name: "Scale now", sort: "scale", number: true, cell: scaleOf },
  {
    name: "Skipped",
    sort: "skipped",
    number: true,
    title: ({ run }) => `${count(run.skipped)} of ${count(run.updates)} steps skipped`,
    cell: ({ run }) => count(run.skipped) + (run.skip_rate === null ? "" : ` (${percent(run.skip_rate)})`),
  },
  { name: "Subnormal now", sort: "subnormal", number: true, cell: ({ run }) => percent(run.subnormal_fraction) },
  { name: "Diagnosis", sort: "severity", cell: diagnosisOf },
  {
    name: "Age",
    sort: "started",
    number: true,
    title: ({ run }) => `Started ${clock(run.started)}`,
    cell: ({ run }) => ago(Date.now() / 1000 - run.started / 1e6),
  },
];

/** Letters of a name that fit three lines of whole words. */
const WORDS_MAX = 30;

/** @param {ListRow} row */
function nameOf({ run, chosen }) {
  const alarm = run.firing ? `${plural(run.firing, "firing alert")}, not acknowledged` : nothing;
  const tags = [...new Set(run.tags)].map((tag) => html`<span class="tag" dir="auto">${tag}</span>`);
  return html`<div class="named">
    <label class="tick"><input type="checkbox" value=${run.run_id} aria-label=${`Select ${run.name}`} .checked=${chosen}></label>
    <a dir="auto" class=${run.name.length > WORDS_MAX ? "long" : nothing} href=${`#/runs/${encodeURIComponent(run.run_id)}`} title=${run.name} aria-label=${run.name}>${shortened(run.name, NAME_MAX)}</a>
    <span class="firing" role="img" title=${alarm} aria-label=${alarm} ?hidden=${!run.firing}>◉</span>
    <span class="tags" title=${run.tags.join(", ") || nothing}>${tags}</span>
  </div>`;
}

/** @param {Sparkline | null} line */
function sparkline(line) {
  const words = line ? `Scale ${line.words}` : nothing;
  return html`<span class="sparkline" title=${words}>
    <svg viewBox="0 0 96 24" role="img" class="spark" aria-label=${line ? words : "Scale: no history"}>
      <path class="line" d=${line?.path ?? nothing}></path>
      <path class="skips" d=${line?.skips || nothing}></path>
    </svg>
  </span>`;
}

/** @param {ListRow} row */
function scaleOf({ run, scale }) {
  const title = run.disabled ? "This scaler is disabled: it does not scale the loss." : run.scale_words;
  const words = run.disabled ? "off" : run.scale_words.split("= ").at(-1);
  return html`${sparkline(scale)}<span class="now" title=${title}>${words}</span>`;
}

/** @param {ListRow} row */
function diagnosisOf({ run: { severity, verdict, updates } }) {
  // A run without updates is not healthy yet.
  if (verdict === null || (severity === null && updates === 0)) return "";
  if (severity === null) return verdictBadge(null);
  return verdictBadge(severity, unquoted(verdict), `${severity}: ${verdict}`);
}

const KEY = "ampmon.columns";
const USUAL = COLUMNS.filter(({ rare }) => !rare).map(({ name }) => name);

/** @param {string} name */
const columnOf = (name) => COLUMNS.find((column) => column.name === name);

/** Unknown columns are dropped. "Run" always stays: it has the link and the checkbox. */
let names = [...new Set(["Run", ...(remembered(KEY)?.split(",") ?? USUAL)])].filter(columnOf);

/** The shown columns, the run's name first. */
export function shownColumns() {
  return names.map((name) => /** @type {ListColumn} */ (columnOf(name)));
}

/** A popup to choose and order the columns. @param {() => void} onChange */
export function columnChoice(onChange) {
  const list = h("ul", { tabindex: -1 });
  const element = h("div");

  function draw() {
    const hidden = COLUMNS.map(({ name }) => name).filter((name) => !names.includes(name));
    keyed(list, [...names, ...hidden].slice(1), { key: (name) => name, make: () => h("li"), update: (item, name) => render(itemOf(name), item) });
  }

  /** @param {string} name */
  function itemOf(name) {
    const others = names.filter((each) => each !== name);
    const at = names.indexOf(name);
    const toggle = () => choose(at < 0 ? [...names, name] : others);
    return html`
      <label class="tick"><input type="checkbox" .checked=${at >= 0} @change=${toggle}>${name}</label>
      <button type="button" class="quiet" aria-label=${`Move ${name} to the left`} ?disabled=${at < 2} @click=${() => choose(others.toSpliced(at - 1, 0, name))}>↑</button>
    `;
  }

  /** @param {string[]} chosen */
  function choose(chosen) {
    names = chosen;
    remember(KEY, String(names) === String(USUAL) ? null : String(names));
    draw();
    onChange();
  }

  draw();
  const usual = html`<button type="button" class="quiet" @click=${() => choose(USUAL)}>Default columns</button>`;
  render(popup("columns", "Columns", "Choose and order the columns", html`<div tabindex="-1">${list}${usual}<p class="caption">A narrow window hides some columns.</p></div>`), element);
  return element;
}

/** The list's query parameters, as the server names them. */
const NARROW = ["project", "status", "tag", "search"];
const NAMES = [...NARROW, "archived", "sort", "order"];

/** The filters that show all runs. */
export const ALL = { project: "", status: "", tag: "", search: "", archived: "" };

/** @param {ListFilters} given */
export const filterQuery = (given) => queryOf(Object.fromEntries(NAMES.map((name) => [name, given[name]])));

/** Whether any filter is set, apart from "archived". @param {ListFilters} given */
export function isNarrow(given) {
  return NARROW.some((name) => given[name]);
}

/** The bar of filters. `columns` chooses the columns. `give` changes filters; `typed` marks a change of the search.
 * @param {ListFilters} given @param {{groups: Groups, total: number, columns: HTMLElement}} list
 * @param {(changed: ListFilters, typed?: boolean) => void} give */
export function filterBar(given, { groups: { projects, tags }, total, columns }, give) {
  /** @type {(name: string, label: string, options: string[][], hidden?: boolean) => TemplateResult} */
  const choice = (name, label, options, hidden = false) => {
    const chosen = given[name] ?? (name === "sort" ? "started" : "");
    // Keep the chosen option even if no run has it any more.
    const known = options.some(([value]) => value === chosen) ? options : [...options, [chosen, chosen]];
    const onChoose = (/** @type {string} */ value) => give({ [name]: value, ...(name === "sort" && { order: COLUMNS.find(({ sort }) => sort === value)?.first ?? "" }) });
    return select({ name, label, options: /** @type {[string, string][]} */ (known), chosen, hidden, onChoose });
  };
  const search = {
    name: "search",
    label: "Search runs",
    placeholder: "Search name, project, owner, tag",
    search: given["search"] ?? "",
    onSearch: (/** @type {string} */ search) => give({ search }, true),
  };
  const sorts = COLUMNS.flatMap(({ sort, name }) => (sort ? [[sort, `Sort by ${name.toLowerCase()}`]] : []));
  return html`
    ${searchField(search)}
    ${choice("project", "Project", [["", "All projects"], ...counted(projects)])}
    ${choice("status", "Status", [["", "Any status"], ...Object.keys(DECLARED.statuses).map((status) => [status, status])])}
    ${choice("tag", "Tag", [["", "Any tag"], ...counted(tags)], Object.keys(tags).length === 0 && !given["tag"])}
    ${choice("sort", "Sort by", sorts)}
    <label class="tick"><input type="checkbox" .checked=${given["archived"] === "true"} @change=${({ target }) => give({ archived: target.checked ? "true" : "" })}>Archived</label>
    ${columns}
    <p class="count" role="status">${plural(total, "run")}</p>
  `;
}

/** @param {Record<string, number>} groups */
function counted(groups) {
  return Object.entries(groups).map(([name, runs]) => [name, `${name} (${count(runs)})`]);
}
