// The page that compares 2 to 20 runs: charts on one axis, distances from a baseline, results and configuration.

import { chosen } from "./address.js";
import { Charts } from "./charts.js";
import { badge, h, html, nothing, notices, render, searchField } from "./dom.js";
import { count, plural } from "./format.js";
import { paced } from "./pace.js";
import { get } from "./server.js";

const OFFERED = 8;

class AddRun {
  #found = h("ul", { class: "offered", hidden: true });
  #field = searchField("add", "Add a run: part of its name, project, owner or tag", "Add a run", (search) => void this.#search(search));

  /** @param {readonly string[]} there @param {{onAdd: (run: string) => void, onTrouble: () => void}} listener */
  constructor(there, listener) {
    this.there = there;
    this.listener = listener;
    this.element = h("div", { class: "add", onfocusout: (event) => this.#leave(event), onkeydown: (event) => this.#escape(event) }, this.#field, this.#found);
  }

  /** @param {string} search */
  async #search(search) {
    if (!search) return this.#offer(null);
    try {
      const query = new URLSearchParams({ search, limit: String(OFFERED + this.there.length) });
      const { runs } = /** @type {{runs: Summary[]}} */ (await get(`/runs?${query}`));
      if (this.#field.value.trim() === search) this.#offer(runs.filter((run) => !this.there.includes(run.run_id)).slice(0, OFFERED));
    } catch {
      this.listener.onTrouble();
    }
  }

  /** @param {Summary[] | null} runs null hides the list */
  #offer(runs) {
    this.#found.hidden = runs === null;
    const items = (runs ?? []).map(({ run_id, name, project }) => {
      const add = () => this.listener.onAdd(run_id);
      return html`<li><button type="button" class="quiet" dir="auto" title=${`Add ${name}`} @click=${add}>${name} · ${project}</button></li>`;
    });
    render(items.length || runs === null ? items : html`<li>No other run matches.</li>`, this.#found);
  }

  /** @param {FocusEvent} event */
  #leave({ relatedTarget }) {
    if (!this.element.contains(/** @type {Node | null} */ (relatedTarget))) this.#offer(null);
  }

  /** @param {KeyboardEvent} event */
  #escape(event) {
    if (event.key !== "Escape" || this.#found.hidden) return;
    event.preventDefault();
    this.#offer(null);
    this.#field.focus();
  }
}

const NONE = "–";

/** With `marked`, differences are marked, and identical lines are hidden until the reader asks for them.
 * @param {string} title @param {string[]} names of the runs @param {FactLine[]} lines @param {boolean} [marked] */
export function facts(title, names, lines, marked = false) {
  const alike = lines.filter((line) => !line.differs).length;
  const headings = names.map((name, place) => html`<th scope="col" dir="auto" class=${`run-${(place % 8) + 1}`} title=${name}>${name}</th>`);
  const rows = lines.map(({ name, values, differs }) => {
    const cells = values.map((value, place) => html`<td dir="auto" data-name=${names[place] ?? ""}>${value ?? NONE}</td>`);
    return html`<tr ?data-differs=${differs}><th scope="row">${name}</th>${cells}</tr>`;
  });
  return html`<section class="ledger">
    <h2>${title}</h2>
    <div class="sideways" tabindex="0" role="region" aria-label=${title}>
      <table class=${marked ? "facts marked" : "facts"}>
        <caption class="unseen">${title}</caption>
        <thead><tr><td></td>${headings}</tr></thead>
        <tbody>${rows}</tbody>
      </table>
    </div>
    <p class="empty" ?hidden=${alike < lines.length || !marked}>All recorded fields are identical.</p>
    ${marked ? html`<label class="tick"><input type="checkbox"><span>Show ${plural(alike, "identical field")}</span></label>` : nothing}
  </section>`;
}

export const MOST = 20;
const FACTS_MS = 5000;
const CHARTS = ["logged", "scale", "skips", "fate"];
/** As in charts/together.py, for lines of 32 pixels. */
const COLOURS = 8;
const DASHES = ["", "9 5", "2 4", "9 4 2 4", "15 5", "15 4 2 4", "8 3 2 3", "2 8"];

export class Compare {
  element = h("article", { class: "run compare" });
  /** @type {Comparison | null} */
  #told = null;
  #read = paced(() => this.#facts(), FACTS_MS);
  #add;

  /** @param {string[]} runs @param {View} view @param {{onView: (runs: string[], view: View) => void, onTrouble: () => void}} listener */
  constructor(runs, view, listener) {
    this.asked = [...new Set(runs)];
    this.runs = this.asked.slice(0, MOST);
    this.follows = this.runs;
    this.listener = listener;
    this.among = `runs=${this.runs.map(encodeURIComponent).join(",")}`;
    this.charts = new Charts(
      "",
      view,
      { onView: (next) => listener.onView(this.asked, next), onTrouble: listener.onTrouble },
      { charts: CHARTS, at: (name) => `/compare/figures/${name}?${this.among}&` },
    );
    this.charts.trackPointer(this.charts.element);
    this.title = this.runs.length > 1 ? `Compare ${plural(this.runs.length, "run")}` : "Compare runs";
    this.#add = new AddRun(this.asked, { onAdd: (run) => listener.onView([...this.asked, run], this.charts.view), onTrouble: listener.onTrouble }).element;
    this.#draw();
  }

  /** The facts' path. They depend on the chosen baseline and logged value. */
  get path() {
    const { baseline, name } = this.charts.view.choices;
    return `/compare?${this.among}&${new URLSearchParams({ ...(baseline && { baseline }), ...(name && { name }) })}`;
  }

  async refresh() {
    if (this.runs.length < 2) return;
    if (this.#told === null) await this.#fetch();
    else this.#read();
    this.charts.refresh();
  }

  /** @param {Address} address */
  look(address) {
    if (address.page !== "compare" || address.runs.join() !== this.asked.join()) return false;
    const before = this.path;
    this.charts.look(address.view);
    if (this.path !== before) void this.#facts();
    return true;
  }

  /** @param {Command} command */
  act(command) {
    // The runs end at different steps, so they have no common newest range to follow.
    return command !== "follow" && command !== "pause" && this.charts.act(command);
  }

  recolour() {
    void this.charts.recolour();
  }

  close() {
    this.#read.stop();
    this.charts.close();
  }

  async #facts() {
    await this.#fetch().catch(() => this.listener.onTrouble());
  }

  async #fetch() {
    const path = this.path;
    const told = /** @type {Comparison} */ (await get(path));
    if (told === this.#told || path !== this.path) return;
    this.#told = told;
    this.#draw();
    this.charts.offerLogged(true, told.own_steps);
  }

  #draw() {
    const told = this.#told;
    const gone = told?.runs.filter((run) => run === null).length ?? 0;
    const warnings = [
      this.asked.length > MOST ? `At most ${MOST} runs can be compared: the first ${MOST} of ${count(this.asked.length)} are shown.` : "",
      gone > 0 ? `${plural(gone, "run")} not found: deleted, or never reported to this server. The page compares the others.` : "",
    ];
    const names = told?.runs.map((run) => run?.name ?? "not found") ?? [];
    const tables = [facts("Results", names, told?.outcome ?? []), facts("Configuration", names, told?.made ?? [], true)];
    const none = html`<p class="empty">Add runs here, or select two to twenty in <a href="#/">the list</a> to compare them.</p>`;
    render(
      html`
        <header><h1>${this.title}</h1>${this.asked.length < MOST ? this.#add : nothing}</header>
        ${notices(warnings.filter(Boolean))}
        <ul class="compared">${told?.runs.map((run, place) => this.#run(told, run, place))}</ul>
        ${this.runs.length > 1 ? [this.charts.element, ...tables] : none}
      `,
      this.element,
    );
  }

  /** @type {(told: Comparison, run: Summary | null, place: number) => TemplateResult} */
  #run(told, run, place) {
    const far = told.distances[place];
    const id = this.runs[place] ?? "";
    const name = run?.name ?? "Run not found";
    const whose = run ? `${run.project} · ${run.owner}` : "";
    const baseline = run !== null && run.run_id === told.baseline;
    const words = baseline ? whose : (far?.words ?? whose);
    const leave = () => this.listener.onView(this.asked.filter((each) => each !== id), this.charts.view);
    return html`<li>
      ${sample(place)}
      <a dir="auto" title=${run ? `${name} · ${whose}` : nothing} href=${run ? `#/runs/${encodeURIComponent(id)}` : nothing}>${name}</a>
      <span title=${words} data-side=${far?.side ?? nothing}>${words}</span>
      ${run && badge(run.status)}
      <button type="button" class="quiet" ?hidden=${run === null} aria-pressed=${baseline} aria-label=${`Baseline: ${name}`} @click=${() => this.#choose(id)}>Baseline</button>
      <button type="button" class="quiet" aria-label=${`Remove ${name}`} @click=${leave}>Remove</button>
    </li>`;
  }

  /** Make a run the baseline, or if it is, return to the first run tagged "baseline". @param {string} run */
  #choose(run) {
    const { view } = this.charts;
    const { choices } = view;
    this.listener.onView(this.asked, { ...view, choices: chosen(choices, "baseline", choices["baseline"] === run ? "" : run) });
  }
}

/** The run's line style in the charts. @param {number} place */
function sample(place) {
  const dash = DASHES[(place + Math.floor(place / COLOURS)) % DASHES.length];
  return html`<svg viewBox="0 0 32 8" class=${`sample run-${(place % COLOURS) + 1}`} aria-hidden="true"><path d="M0 4H32" stroke-dasharray=${dash}></path></svg>`;
}
