// The filters of the list of runs: search, project, status, tag and archived. The address holds all of them.

import { h, html, offerSearch, renderForm, searchField, select } from "./dom.js";
import { count, plural } from "./format.js";
import { COLUMNS } from "./list-columns.js";
import { get } from "./server.js";
import { STATUS } from "./words.js";

/** The list's query parameters, as the server names them. */
const NARROW = ["project", "status", "tag", "search"];
const NAMES = [...NARROW, "archived", "sort", "order"];

export class Filters {
  element = h("div", { class: "filters", role: "search", hidden: true });
  #search = searchField("search", "Search runs", "Search name, project, owner, tag", (search) => this.#give({ search }, true));
  /** The number of runs in each project and with each tag. @type {Groups} */
  #groups = { projects: {}, tags: {} };
  #total = 0;

  /** `columns` chooses the columns. `typed` marks a change of the search, which is not worth a history entry.
   * @param {ListFilters} given @param {HTMLElement} columns @param {(given: ListFilters, typed: boolean) => void} onGiven */
  constructor(given, columns, onGiven) {
    this.given = given;
    this.columns = columns;
    this.onGiven = onGiven;
    this.look(given);
  }

  /** @param {ListFilters} given */
  look(given) {
    this.given = given;
    offerSearch(this.#search, given["search"] ?? "");
    this.#draw();
  }

  get query() {
    const named = NAMES.map((name) => [name, this.given[name] ?? ""]).filter(([, value]) => value !== "");
    return new URLSearchParams(named);
  }

  /** Whether any filter is set, apart from "archived". */
  get narrow() {
    return NARROW.some((name) => this.given[name]);
  }

  clear() {
    this.#search.value = "";
    this.#give({ project: "", status: "", tag: "", search: "", archived: "" });
  }

  /** @param {number} total */
  count(total) {
    this.#total = total;
    this.#draw();
  }

  /** Fetch the projects and tags. Rejects if the server does not answer. */
  async refresh() {
    const answer = await get(`/runs/groups${this.given["archived"] === "true" ? "?archived=true" : ""}`);
    this.#groups = /** @type {Groups} */ (answer);
    this.#draw();
  }

  #draw() {
    const { projects, tags } = this.#groups;
    const statuses = Object.keys(STATUS).map((status) => [status, status]);
    const sorts = COLUMNS.flatMap(({ sort, name }) => (sort ? [[sort, `Sort by ${name.toLowerCase()}`]] : []));
    const archive = (/** @type {Event} */ { target }) => this.#give({ archived: /** @type {HTMLInputElement} */ (target).checked ? "true" : "" });
    renderForm(
      html`
        ${this.#search}
        ${this.#select("project", "Project", [["", "All projects"], ...counted(projects)])}
        ${this.#select("status", "Status", [["", "Any status"], ...statuses])}
        ${this.#select("tag", "Tag", [["", "Any tag"], ...counted(tags)], Object.keys(tags).length === 0 && !this.given["tag"])}
        ${this.#select("sort", "Sort by", sorts)}
        <label class="tick"><input type="checkbox" .checked=${this.given["archived"] === "true"} @change=${archive}>Archived</label>
        ${this.columns}
        <p class="count" role="status">${plural(this.#total, "run")}</p>
      `,
      this.element,
    );
  }

  /** @type {(name: string, label: string, options: string[][], hidden?: boolean) => ReturnType<typeof select>} */
  #select(name, label, options, hidden = false) {
    const chosen = this.given[name] ?? (name === "sort" ? "started" : "");
    // Keep the chosen option even if no run has it any more.
    const known = options.some(([value]) => value === chosen) ? options : [...options, [chosen, chosen]];
    const onChoose = (/** @type {string} */ value) => this.#give({ [name]: value, ...(name === "sort" ? { order: defaultOrder(value) } : {}) });
    return select({ name, label, options: /** @type {[string, string][]} */ (known), chosen, hidden, onChoose });
  }

  /** @type {(changed: ListFilters, typed?: boolean) => void} */
  #give(changed, typed = false) {
    const all = Object.entries({ ...this.given, ...changed }).filter(([, value]) => value !== "");
    this.onGiven(Object.fromEntries(all), typed);
  }
}

/** @param {string} sort */
function defaultOrder(sort) {
  return COLUMNS.find((column) => column.sort === sort)?.first ?? "";
}

/** @param {Record<string, number>} groups */
function counted(groups) {
  return Object.entries(groups).map(([name, runs]) => [name, `${name} (${count(runs)})`]);
}
