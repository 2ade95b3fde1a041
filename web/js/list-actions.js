// What can be done with the runs that are selected: compare, rename and tag, archive, delete.

import { send } from "./api.js";
import { ask, deleting, editing, pathOf } from "./changing.js";
import { MOST } from "./compare.js";
import { h, say } from "./dom.js";
import { plural } from "./format.js";
import { mayChange } from "./who.js";

/** @import { Summary } from "../types/page.js" */

export class Actions {
  /** @type {Map<string, Summary>} */
  chosen = new Map();
  #count = h("p", { role: "status" });
  #compare = h("a", { class: "button" }, "Compare");
  #edit = h("button", { type: "button", onclick: () => this.#ask(editing(this.#first)) }, "Edit…");
  #archive = h("button", { type: "button", onclick: () => void this.#archived() }, "Archive");
  #delete = h("button", { type: "button", onclick: () => this.#ask(deleting([...this.chosen.values()])) }, "Delete…");
  #why = h("p", { class: "why", role: "alert" });
  element = h(
    "div",
    { class: "actions", role: "toolbar", "aria-label": "Selected runs", hidden: true },
    this.#count,
    this.#compare,
    this.#edit,
    this.#archive,
    this.#delete,
    h("button", { type: "button", class: "quiet", onclick: () => this.clear() }, "Clear"),
    this.#why,
  );

  /** @param {() => void} onChange called when the selection, or a run, is another */
  constructor(onChange) {
    this.onChange = onChange;
  }

  /**
   * @param {Summary} run
   * @param {boolean} chosen
   */
  choose(run, chosen) {
    if (chosen) this.chosen.set(run.run_id, run);
    else this.chosen.delete(run.run_id);
    this.#describe();
  }

  clear() {
    this.chosen.clear();
    this.#describe();
    this.onChange();
  }

  get #first() {
    return /** @type {Summary} */ ([...this.chosen.values()][0]);
  }

  #describe() {
    const runs = [...this.chosen.values()];
    this.element.hidden = runs.length === 0;
    say(this.#count, `${plural(runs.length, "run")} selected`);
    const others = runs.filter((run) => !mayChange(run)).length;
    say(this.#why, [tooMany(runs.length), othersWords(others, runs.length)].filter(Boolean).join(" "));
    this.#compare.hidden = runs.length < 2 || runs.length > MOST;
    this.#compare.href = `#/compare?runs=${runs.map((run) => run.run_id).join(",")}`;
    this.#edit.hidden = runs.length !== 1 || others > 0;
    this.#archive.hidden = this.#delete.hidden = others > 0;
    say(this.#archive, runs.every((run) => run.archived) ? "Unarchive" : "Archive");
  }

  async #archived() {
    const archived = this.#archive.textContent === "Archive";
    await this.#each((run) => send("PATCH", pathOf(run), { archived }));
  }

  /** @param {{dialog: HTMLDialogElement, work: (run: Summary) => Promise<unknown>}} asked */
  #ask({ dialog, work }) {
    ask(dialog, () => void this.#each(work));
  }

  /** @param {(run: Summary) => Promise<unknown>} work */
  async #each(work) {
    try {
      for (const run of [...this.chosen.values()]) {
        await work(run);
        this.chosen.delete(run.run_id);
      }
      this.clear();
    } catch (error) {
      this.#describe();
      say(this.#why, `Action failed: ${error instanceof Error ? error.message : error}`);
      this.onChange();
    }
  }
}

/** @param {number} chosen */
function tooMany(chosen) {
  return chosen > MOST ? `At most ${MOST} can be compared.` : "";
}

/**
 * @param {number} others how many of the runs are not the reader's to change
 * @param {number} chosen
 */
function othersWords(others, chosen) {
  if (others === 0) return "";
  const which = chosen === 1 ? "It is" : others === chosen ? "They are" : `${others} of them ${others === 1 ? "is" : "are"}`;
  return `${which} not yours to change: only the owner may, or an admin.`;
}
