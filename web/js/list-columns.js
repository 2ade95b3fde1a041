// The columns of the list of runs, and which of them the reader chose, in which order. The browser remembers the choice.

import { remember, remembered } from "./browser.js";
import { badge, h, html, keyed, nothing, popup, render, verdictBadge } from "./dom.js";
import { ago, clock, count, measure, percent, plural, power, powerOfTwo, revived, unquoted } from "./format.js";

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
    cell: ({ loss }) => (loss ? measure(revived(loss.value, loss.kind)) + (loss.least === null ? "" : ` (min ${measure(loss.least)})`) : "–"),
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

/** @param {ListRow} row */
function nameOf({ run, chosen }) {
  const alarm = run.firing ? `${plural(run.firing, "firing alert")}, not acknowledged` : nothing;
  const tags = [...new Set(run.tags)].map((tag) => html`<span class="tag" dir="auto">${tag}</span>`);
  return html`<div class="named">
    <label class="tick"><input type="checkbox" value=${run.run_id} aria-label=${`Select ${run.name}`} .checked=${chosen}></label>
    <a dir="auto" href=${`#/runs/${encodeURIComponent(run.run_id)}`} title=${run.name}>${run.name}</a>
    <span class="firing" role="img" title=${alarm} aria-label=${alarm} ?hidden=${!run.firing}>◉</span>
    <span class="tags" title=${run.tags.join(", ") || nothing}>${tags}</span>
  </div>`;
}

/** @param {Sparkline | null} line */
function sparkline(line) {
  const words = line ? `Scale ${line.words}` : nothing;
  return html`<span class="sparkline" title=${words}>
    <svg viewBox="0 0 96 24" role="img" class="spark" aria-label=${line ? words : "Scale: no history yet"}>
      <path class="line" d=${line?.path ?? nothing}></path>
      <path class="skips" d=${line?.skips || nothing}></path>
    </svg>
  </span>`;
}

/** @param {ListRow} row */
function scaleOf({ run, scale }) {
  const held = revived(run.scale, run.scale_kind);
  const [words, title] = run.disabled ? ["off", "This scaler is disabled: it does not scale the loss."] : [power(held), powerOfTwo(held)];
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

/** Unknown columns are dropped. "Run" always stays: it has the link and the checkbox. */
let names = [...new Set(["Run", ...storedColumns()])].filter(columnOf);

/** @returns {string[]} */
function storedColumns() {
  try {
    const kept = /** @type {unknown} */ (JSON.parse(remembered(KEY) ?? "null"));
    return Array.isArray(kept) ? kept : USUAL;
  } catch {
    return USUAL;
  }
}

/** @param {string} name */
function columnOf(name) {
  return COLUMNS.find((column) => column.name === name);
}

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
    remember(KEY, String(names) === String(USUAL) ? null : JSON.stringify(names));
    draw();
    onChange();
  }

  draw();
  const usual = html`<button type="button" class="quiet" @click=${() => choose(USUAL)}>Default columns</button>`;
  render(popup("columns", "Columns", "Choose and order the columns", html`<div tabindex="-1">${list}${usual}</div>`), element);
  return element;
}
