// The page that compares 2 to 20 runs: charts on one axis, distances from a baseline, results and configuration.

import { queryOf } from "./address.js";
import { Charts } from "./charts.js";
import { badge, h, html, nothing, notices, render, searchField } from "./dom.js";
import { count, NAME_MAX, NONE, plural, shortened } from "./format.js";
import { paced } from "./pace.js";
import { get } from "./server.js";

export const MOST = 20;
const FACTS_MS = 5000;
const OFFERED = 8;
const CHARTS = ["logged", "scale", "skips", "fate"];
/** As in charts/together.py, for lines of 32 pixels. */
const COLOURS = 8;
const DASHES = ["", "9 5", "2 4", "9 4 2 4", "15 5", "15 4 2 4", "8 3 2 3", "2 8"];

export class Compare {
  element = h("article", { class: "run compare" });
  /** @type {Comparison | null} */
  #comparison = null;
  #searched = "";
  /** Runs that the search for one to add has found; null shows none. @type {Summary[] | null} */
  #offered = null;
  #read = paced(() => this.#fetch().catch(this.host.onTrouble), FACTS_MS);

  /** @param {Extract<Address, {page: "compare"}>} address @param {Host} host */
  constructor({ runs, view }, host) {
    this.asked = [...new Set(runs)];
    this.runs = this.asked.slice(0, MOST);
    this.follows = this.runs;
    this.host = host;
    this.among = `runs=${this.runs.map(encodeURIComponent).join(",")}`;
    const onView = (/** @type {View} */ next) => this.#go(this.asked, next);
    this.charts = new Charts(view, { at: "/compare", more: `${this.among}&`, charts: CHARTS, onView, onTrouble: host.onTrouble });
    this.charts.trackPointer(this.charts.element);
    this.title = this.runs.length > 1 ? `Compare ${plural(this.runs.length, "run")}` : "Compare runs";
    this.#draw();
  }

  /** @param {string[]} runs */
  #go(runs, view = this.charts.view) {
    this.host.go({ page: "compare", runs, view });
  }

  /** The facts' path. They depend on the chosen baseline and logged value. */
  get path() {
    const { baseline, name } = this.charts.view.choices;
    return `/compare?${this.among}&${queryOf({ baseline, name })}`;
  }

  async refresh() {
    if (this.runs.length < 2) return;
    if (this.#comparison === null) await this.#fetch();
    else this.#read();
    this.charts.refresh();
  }

  /** @param {Address} address */
  look(address) {
    if (address.page !== "compare" || address.runs.join() !== this.asked.join()) return false;
    const before = this.path;
    this.charts.look(address.view);
    if (this.path !== before) this.#read.now();
    return true;
  }

  /** @param {Command} command */
  act(command) {
    // The runs end at different steps, so they have no common newest range to follow.
    return command !== "follow" && command !== "pause" && this.charts.act(command);
  }

  close() {
    this.#read.stop();
    this.charts.close();
  }

  async #fetch() {
    const path = this.path;
    const comparison = /** @type {Comparison} */ (await get(path));
    if (comparison === this.#comparison || path !== this.path) return;
    this.#comparison = comparison;
    this.#draw();
    this.charts.offerLogged(true, comparison.own_steps);
  }

  #draw() {
    const comparison = this.#comparison;
    const gone = comparison?.runs.filter((run) => run === null).length ?? 0;
    const warnings = [
      this.asked.length > MOST ? `At most ${MOST} runs can be compared: the first ${MOST} of ${count(this.asked.length)} are shown.` : "",
      gone > 0 ? `${plural(gone, "run")} not found: deleted, or never reported to this server.${gone < this.runs.length ? " The page compares the others." : ""}` : "",
    ];
    const names = comparison?.runs.map((run) => run?.name ?? "not found") ?? [];
    const tables = [facts("Results", names, comparison?.outcome ?? []), facts("Configuration", names, comparison?.made ?? [], true)];
    const none = html`<p class="empty">Add runs here, or select two to twenty in <a href="#/">the list</a> to compare them.</p>`;
    render(
      html`
        <header><h1 tabindex="-1">${this.title}</h1>${this.asked.length < MOST ? this.#adding() : nothing}</header>
        ${notices(warnings.filter(Boolean))}
        <ul class="compared">${comparison?.runs.map((run, place) => this.#run(comparison, run, place))}</ul>
        ${this.runs.length > 1 ? [this.charts.element, ...tables] : none}
      `,
      this.element,
    );
  }

  /** @type {(comparison: Comparison, run: Summary | null, place: number) => TemplateResult} */
  #run(comparison, run, place) {
    const far = comparison.distances[place];
    const id = this.runs[place] ?? "";
    const name = run?.name ?? "Run not found";
    const whose = run ? `${run.project} · ${run.owner}` : "";
    const baseline = run !== null && run.run_id === comparison.baseline;
    const words = baseline ? whose : (far?.words ?? whose);
    // The baseline's button returns to the first run tagged "baseline".
    const choose = () => this.charts.choose("baseline", this.charts.view.choices["baseline"] === id ? "" : id);
    const leave = () => this.#go(this.asked.filter((each) => each !== id));
    return html`<li>
      ${sample(place)}
      <a dir="auto" title=${run ? `${name} · ${whose}` : nothing} href=${run ? `#/runs/${encodeURIComponent(id)}` : nothing}>${name}</a>
      <span title=${words} data-side=${far?.side ?? nothing}>${words}</span>
      ${run && badge(run.status)}
      <button type="button" class="quiet" ?hidden=${run === null} aria-pressed=${baseline} aria-label=${`Baseline: ${name}`} @click=${choose}>Baseline</button>
      <button type="button" class="quiet" aria-label=${`Remove ${name}`} @click=${leave}>Remove</button>
    </li>`;
  }

  /** A search field that finds runs to add. */
  #adding() {
    const label = "Add a run: part of its name, project, owner or tag";
    const items = this.#offered?.map(({ run_id, name, project }) => {
      const add = () => this.#go([...this.asked, run_id]);
      return html`<li><button type="button" class="quiet" dir="auto" title=${`Add ${name}`} @click=${add}>${name} · ${project}</button></li>`;
    });
    const leave = (/** @type {UserEvent} */ { currentTarget, relatedTarget }) => {
      if (!currentTarget.contains(/** @type {Node | null} */ (relatedTarget))) this.#offer(null);
    };
    const escape = (/** @type {UserEvent} */ event) => {
      if (event.key !== "Escape" || this.#offered === null) return;
      event.preventDefault();
      this.#offer(null);
      event.currentTarget.querySelector("input")?.focus();
    };
    return html`<div class="add" @focusout=${leave} @keydown=${escape}>
      ${searchField({ name: "add", label, placeholder: "Add a run", onSearch: (search) => void this.#search(search) })}
      <ul class="offered" ?hidden=${!items}>${items?.length === 0 ? html`<li>No other run matches.</li>` : items}</ul>
    </div>`;
  }

  /** @param {string} search */
  async #search(search) {
    this.#searched = search;
    if (!search) return this.#offer(null);
    try {
      const query = queryOf({ search, limit: OFFERED + this.asked.length });
      const { runs } = /** @type {{runs: Summary[]}} */ (await get(`/runs?${query}`));
      if (this.#searched === search) this.#offer(runs.filter((run) => !this.asked.includes(run.run_id)).slice(0, OFFERED));
    } catch {
      this.host.onTrouble();
    }
  }

  /** @param {Summary[] | null} runs */
  #offer(runs) {
    this.#offered = runs;
    this.#draw();
  }
}

/** The run's line style in the charts. @param {number} place */
function sample(place) {
  const dash = DASHES[(place + Math.floor(place / COLOURS)) % DASHES.length];
  return html`<svg viewBox="0 0 32 8" class=${`sample run-${(place % COLOURS) + 1}`} aria-hidden="true"><path d="M0 4H32" stroke-dasharray=${dash}></path></svg>`;
}

/** A table with a column for each run and a line for each fact. With `marked`, differences are marked, and identical lines
 * are hidden until the reader asks for them.
 * @param {string} title @param {string[]} names of the runs @param {FactLine[]} lines @param {boolean} [marked] */
function facts(title, names, lines, marked = false) {
  const alike = lines.filter((line) => !line.differs).length;
  const headings = names.map((name, place) => html`<th scope="col" dir="auto" class=${`run-${(place % COLOURS) + 1}`} title=${name} aria-label=${name}>${shortened(name, NAME_MAX)}</th>`);
  const rows = lines.map(({ name, values, differs }) => {
    const cells = values.map((value, place) => html`<td dir="auto" data-name=${shortened(names[place] ?? "", NAME_MAX)}>${value || NONE}</td>`);
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
    ${marked && alike ? html`<label class="tick"><input type="checkbox"><span>Show ${plural(alike, "identical field")}</span></label>` : nothing}
  </section>`;
}
