// What can be done with the runs that are selected: compare, rename and tag, archive, delete.

import { send } from "./api.js";
import { h, say } from "./dom.js";
import { plural } from "./format.js";

/** @import { Summary } from "../types/page.js" */

const COMPARED_MAX = 8;
const NAMED_MAX = 8;

export class Actions {
  /** @type {Map<string, Summary>} */
  chosen = new Map();
  #count = h("p", { role: "status" });
  #compare = h("a", { class: "button" }, "Compare");
  #edit = h("button", { type: "button", onclick: () => this.#ask(editing(this.#first)) }, "Edit…");
  #archive = h("button", { type: "button", onclick: () => void this.#archived() }, "Archive");
  #why = h("p", { class: "why", role: "alert" });
  element = h(
    "div",
    { class: "actions", role: "toolbar", "aria-label": "Selected runs", hidden: true },
    this.#count,
    this.#compare,
    this.#edit,
    this.#archive,
    h("button", { type: "button", onclick: () => this.#ask(deleting([...this.chosen.values()])) }, "Delete…"),
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
    say(this.#why, runs.length > COMPARED_MAX ? `At most ${COMPARED_MAX} can be compared.` : "");
    this.#compare.hidden = runs.length < 2 || runs.length > COMPARED_MAX;
    this.#compare.href = `#/compare?runs=${runs.map((run) => run.run_id).join(",")}`;
    this.#edit.hidden = runs.length !== 1;
    say(this.#archive, runs.every((run) => run.archived) ? "Unarchive" : "Archive");
  }

  async #archived() {
    const archived = this.#archive.textContent === "Archive";
    await this.#each((run) => send("PATCH", pathOf(run), { archived }));
  }

  /**
   * Opens a dialog, and does what it was closed with.
   * @param {{dialog: HTMLDialogElement, work: (run: Summary) => Promise<unknown>}} asked
   */
  #ask({ dialog, work }) {
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (dialog.returnValue === "do") void this.#each(work);
    });
    document.body.append(dialog);
    dialog.showModal();
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
      say(this.#why, `That did not work: ${error instanceof Error ? error.message : error}`);
      this.onChange();
    }
  }
}

/** @param {Summary} run */
function pathOf(run) {
  return `/runs/${encodeURIComponent(run.run_id)}`;
}

/** @param {Summary[]} runs */
function deleting(runs) {
  const named = runs.slice(0, NAMED_MAX).map((run) => h("li", {}, h("bdi", {}, run.name), ` · ${run.project} · ${plural(run.updates, "update")}`));
  const more = runs.length - named.length;
  const dialog = asking(
    `Delete ${plural(runs.length, "run")}?`,
    [
      h("ul", {}, ...named),
      more ? h("p", {}, `and ${plural(more, "other")}.`) : null,
      h("p", {}, "Nothing of it can be brought back. What a process still sends of it is not stored."),
    ],
    "Delete",
  );
  return { dialog, work: (/** @type {Summary} */ run) => send("DELETE", pathOf(run)) };
}

/** @param {Summary} run */
function editing(run) {
  const name = h("input", { name: "name", value: run.name, maxlength: 256, required: true, dir: "auto" });
  const tags = h("input", { name: "tags", value: run.tags.join(", "), dir: "auto" });
  const fields = [h("label", {}, "Name", name), h("label", {}, "Tags, with commas between", tags)];
  const work = (/** @type {Summary} */ edited) =>
    send("PATCH", pathOf(edited), { name: name.value, tags: tags.value.split(",").map((tag) => tag.trim()).filter(Boolean) });
  return { dialog: asking("Edit run", fields, "Save"), work };
}

/**
 * @param {string} title
 * @param {(Node | null)[]} content
 * @param {string} deed what its button is called
 */
function asking(title, content, deed) {
  // A form of a dialog closes it with the value of the button; Escape closes it with none.
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", {}, title),
    ...content,
    h("p", { class: "answers" }, h("button", { value: "", formnovalidate: true }, "Cancel"), h("button", { value: "do", class: "deed" }, deed)),
  );
  return h("dialog", { class: "asking", "aria-label": title }, form);
}
