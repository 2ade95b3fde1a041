// The filters of the list of runs: search, project, status, tag and archived. The address holds all of them.

import { html, searchField, select } from "./dom.js";
import { count, plural } from "./format.js";
import { COLUMNS } from "./list-columns.js";
import { STATUS } from "./words.js";

/** The list's query parameters, as the server names them. */
const NARROW = ["project", "status", "tag", "search"];
const NAMES = [...NARROW, "archived", "sort", "order"];

/** The filters that show all runs. */
export const ALL = { project: "", status: "", tag: "", search: "", archived: "" };

/** @param {ListFilters} given */
export function queryOf(given) {
  return new URLSearchParams(NAMES.map((name) => [name, given[name] ?? ""]).filter(([, value]) => value !== ""));
}

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
    const onChoose = (/** @type {string} */ value) => give({ [name]: value, ...(name === "sort" ? { order: defaultOrder(value) } : {}) });
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
    ${choice("status", "Status", [["", "Any status"], ...Object.keys(STATUS).map((status) => [status, status])])}
    ${choice("tag", "Tag", [["", "Any tag"], ...counted(tags)], Object.keys(tags).length === 0 && !given["tag"])}
    ${choice("sort", "Sort by", sorts)}
    <label class="tick"><input type="checkbox" .checked=${given["archived"] === "true"} @change=${({ target }) => give({ archived: target.checked ? "true" : "" })}>Archived</label>
    ${columns}
    <p class="count" role="status">${plural(total, "run")}</p>
  `;
}

/** @param {string} sort */
function defaultOrder(sort) {
  return COLUMNS.find((column) => column.sort === sort)?.first ?? "";
}

/** @param {Record<string, number>} groups */
function counted(groups) {
  return Object.entries(groups).map(([name, runs]) => [name, `${name} (${count(runs)})`]);
}
