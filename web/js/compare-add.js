// A field that finds runs to add to those that are compared, and offers what it found.

import { get } from "./api.js";
import { h, keyed, mark, say } from "./dom.js";
import { searchField } from "./search.js";

/** @import { Summary } from "../types/page.js" */

const OFFERED = 8;

export class AddRun {
  #found = h("ul", { class: "offered", hidden: true });
  #field = searchField("add", "Add a run: part of its name, project, owner or tag", (search) => void this.#search(search));

  /**
   * @param {readonly string[]} there the runs that are compared already
   * @param {{onAdd: (run: string) => void, onTrouble: () => void}} listener
   */
  constructor(there, listener) {
    this.there = there;
    this.listener = listener;
    this.#field.placeholder = "Add a run";
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

  /** @param {Summary[] | null} runs null for no search */
  #offer(runs) {
    this.#found.hidden = runs === null;
    const none = runs?.length === 0 ? [null] : [];
    keyed(this.#found, [...(runs ?? []), ...none], {
      key: (run) => run?.run_id ?? "",
      make: (run) => h("li", {}, run ? h("button", { type: "button", class: "quiet", dir: "auto", onclick: () => this.listener.onAdd(run.run_id) }) : "No other run matches."),
      update: (item, run) => {
        if (!run || !item.firstElementChild) return;
        say(item.firstElementChild, `${run.name} · ${run.project}`);
        mark(item.firstElementChild, "title", `Add ${run.name}`);
      },
    });
  }

  /** @param {Event} event */
  #leave(event) {
    const to = event instanceof FocusEvent ? event.relatedTarget : null;
    if (!(to instanceof Node && this.element.contains(to))) this.#offer(null);
  }

  /** @param {Event} event */
  #escape(event) {
    if (!(event instanceof KeyboardEvent) || event.key !== "Escape" || this.#found.hidden) return;
    event.preventDefault();
    this.#offer(null);
    this.#field.focus();
  }
}
