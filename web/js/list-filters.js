// What the list of runs shows: words to search for, project, status, tag, archived ones or not. All of it is the address's.

import { get } from "./api.js";
import { h, offer, say } from "./dom.js";
import { count, plural } from "./format.js";
import { COLUMNS } from "./list-columns.js";
import { offerSearch, searchField } from "./search.js";
import { STATUS } from "./words.js";

/** @typedef {Record<string, string>} Given */

/** What a list is asked for, by the names that the server has for it. */
const NAMES = ["project", "status", "tag", "search", "archived", "sort", "order"];

export class Filters {
  /** @type {Given} */
  given = {};
  #search = searchField("search", "Search runs", "Search name, project, owner, tag", (search) => this.#give({ search }, true));
  #selects = {
    project: this.#select("project", "Project"),
    status: this.#select("status", "Status"),
    tag: this.#select("tag", "Tag"),
    sort: this.#select("sort", "Sort by"),
  };
  #archived = h("input", { type: "checkbox", onchange: () => this.#give({ archived: this.#archived.checked ? "true" : "" }, false) });
  #count = h("p", { class: "count", role: "status" });
  element = h(
    "div",
    { class: "filters", role: "search", hidden: true },
    this.#search,
    this.#selects.project,
    this.#selects.status,
    this.#selects.tag,
    this.#selects.sort,
    h("label", { class: "tick" }, this.#archived, "Archived"),
    this.#count,
  );

  /**
   * @param {Given} given
   * @param {(given: Given, typed: boolean) => void} onGiven `typed`: letter by letter, so not worth a place in the history
   */
  constructor(given, onGiven) {
    this.onGiven = onGiven;
    this.look(given);
    this.#offer("project", [], "All projects");
    this.#offer("tag", [], "Any tag");
    this.#offer("status", Object.keys(STATUS).map((status) => [status, status]), "Any status");
    this.#offer("sort", COLUMNS.flatMap(({ sort, name }) => (sort ? [/** @type {[string, string]} */ ([sort, `Sort by ${name.toLowerCase()}`])] : [])), null);
  }

  /** @param {Given} given */
  look(given) {
    this.given = given;
    offerSearch(this.#search, given["search"] ?? "");
    this.#archived.checked = given["archived"] === "true";
    for (const [name, select] of Object.entries(this.#selects)) select.value = given[name] ?? (name === "sort" ? "started" : "");
  }

  /** What the list is asked for. */
  get query() {
    const named = NAMES.map((name) => [name, this.given[name] ?? ""]).filter(([, value]) => value !== "");
    return new URLSearchParams(named);
  }

  /** Whether it leaves any run out, archived ones aside. */
  get narrow() {
    return ["project", "status", "tag", "search"].some((name) => this.given[name]);
  }

  clear() {
    this.#search.value = "";
    this.#give({ project: "", status: "", tag: "", search: "", archived: "" }, false);
  }

  /** @param {number} total */
  count(total) {
    say(this.#count, plural(total, "run"));
  }

  /** Asks which projects and tags there are. Rejects where the server does not answer. */
  async refresh() {
    const answer = await get(`/runs/groups${this.given["archived"] === "true" ? "?archived=true" : ""}`);
    const { projects, tags } = /** @type {{projects: Record<string, number>, tags: Record<string, number>}} */ (answer);
    this.#offer("project", counted(projects), "All projects");
    this.#offer("tag", counted(tags), "Any tag");
    this.#selects.tag.hidden = Object.keys(tags).length === 0 && !this.given["tag"];
  }

  /**
   * @param {"project" | "status" | "tag" | "sort"} name
   * @param {[string, string][]} options
   * @param {string | null} any what the choice of none is called
   */
  #offer(name, options, any) {
    const select = this.#selects[name];
    const chosen = this.given[name] ?? (name === "sort" ? "started" : "");
    // What is chosen stands, though no run has it any more.
    const known = !chosen || options.some(([value]) => value === chosen) ? options : [...options, /** @type {[string, string]} */ ([chosen, chosen])];
    offer(select, any === null ? known : [["", any], ...known], chosen);
  }

  /**
   * @param {string} name
   * @param {string} label
   */
  #select(name, label) {
    const select = h("select", { name, "aria-label": label, onchange: () => this.#give({ [name]: select.value, ...(name === "sort" ? { order: usualOrder(select.value) } : {}) }, false) });
    return select;
  }

  /**
   * @param {Given} changed
   * @param {boolean} typed
   */
  #give(changed, typed) {
    const all = Object.entries({ ...this.given, ...changed }).filter(([, value]) => value !== "");
    this.onGiven(Object.fromEntries(all), typed);
  }
}

/** @param {string} sort */
function usualOrder(sort) {
  return COLUMNS.find((column) => column.sort === sort)?.first ?? "";
}

/** @param {Record<string, number>} groups @returns {[string, string][]} */
function counted(groups) {
  return Object.entries(groups).map(([name, runs]) => [name, `${name} (${count(runs)})`]);
}
