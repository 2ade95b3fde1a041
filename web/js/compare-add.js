// A search field that finds runs to add to a comparison.

import { get } from "./api.js";
import { h } from "./dom.js";
import { html, render } from "./lit-html.js";
import { searchField } from "./search.js";

const OFFERED = 8;

export class AddRun {
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
