// What can be done with the run on the page: rename and tag it, archive it, delete it.

import { send } from "./api.js";
import { ask, deleting, editing, pathOf } from "./changing.js";
import { h, say } from "./dom.js";
import { tried } from "./toast.js";
import { mayChange } from "./who.js";

/** @import { Summary } from "../types/page.js" */

export class RunActions {
  #archive = h("button", { type: "button", class: "quiet", onclick: () => void this.#do((run) => send("PATCH", pathOf(run), { archived: !run.archived })) });
  element = h(
    "p",
    { class: "own", hidden: true },
    h("button", { type: "button", class: "quiet", onclick: () => this.#ask(editing) }, "Edit…"),
    this.#archive,
    h("button", { type: "button", class: "quiet", onclick: () => this.#ask((run) => deleting([run])) }, "Delete…"),
  );
  /** @type {Summary | null} */
  #run = null;

  /** @param {() => void} onChange called when the run is another */
  constructor(onChange) {
    this.onChange = onChange;
  }

  /** @param {Summary} run */
  update(run) {
    this.#run = run;
    this.element.hidden = !mayChange(run);
    say(this.#archive, run.archived ? "Unarchive" : "Archive");
  }

  /** @param {(run: Summary) => {dialog: HTMLDialogElement, work: (run: Summary) => Promise<unknown>}} make */
  #ask(make) {
    if (this.#run === null) return;
    const { dialog, work } = make(this.#run);
    ask(dialog, () => void this.#do(work));
  }

  /** @param {(run: Summary) => Promise<unknown>} work */
  async #do(work) {
    const run = this.#run;
    if (run !== null && (await tried(() => work(run)))) this.onChange();
  }
}
