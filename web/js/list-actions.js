// Actions on the selected runs: compare, rename and tag, archive, delete.

import { Refused } from "./api.js";
import { archiving, edit, remove } from "./changing.js";
import { MOST } from "./compare.js";
import { h } from "./dom.js";
import { plural } from "./format.js";
import { html, render } from "./lit-html.js";
import { mayChange } from "./account.js";

export class Actions {
  /** @type {Map<string, Summary>} */
  chosen = new Map();
  element = h("div", { class: "actions", role: "toolbar", "aria-label": "Selected runs", hidden: true });

  /** @param {() => void} onChange called after the selection or a run has changed */
  constructor(onChange) {
    this.onChange = onChange;
    this.#describe();
  }

  /** @type {(run: Summary, chosen: boolean) => void} */
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

  /** @param {string} [trouble] an error, shown in place of the usual notes */
  #describe(trouble) {
    const runs = [...this.chosen.values()];
    const others = runs.filter((run) => !mayChange(run)).length;
    const archived = runs.every((run) => run.archived);
    const act = (/** @type {RunChange} */ work) => void this.#each(work);
    const why = trouble ?? [runs.length > MOST ? `At most ${MOST} can be compared.` : "", refusalWords(others, runs.length)].filter(Boolean).join(" ");
    this.element.hidden = runs.length === 0;
    render(
      html`
        <p role="status">${plural(runs.length, "run")} selected</p>
        <a class="button" href=${`#/compare?runs=${[...this.chosen.keys()].join(",")}`} ?hidden=${runs.length < 2 || runs.length > MOST}>Compare</a>
        <button type="button" @click=${() => runs[0] && edit(runs[0], act)} ?hidden=${runs.length !== 1 || others > 0}>Edit…</button>
        <button type="button" @click=${() => act(archiving(!archived))} ?hidden=${others > 0}>${archived ? "Unarchive" : "Archive"}</button>
        <button type="button" @click=${() => remove(runs, act)} ?hidden=${others > 0}>Delete…</button>
        <button type="button" class="quiet" @click=${() => this.clear()}>Clear</button>
        <p class="why" role="alert">${why}</p>
      `,
      this.element,
    );
  }

  /** @param {RunChange} work */
  async #each(work) {
    try {
      for (const run of [...this.chosen.values()]) {
        await work(run).catch((error) => {
          // A run that was deleted elsewhere needs no change.
          if (!(error instanceof Refused && error.status === 404)) throw error;
        });
        this.chosen.delete(run.run_id);
      }
      this.clear();
    } catch (error) {
      this.#describe(`Action failed: ${error instanceof Error ? error.message : error}`);
      this.onChange();
    }
  }
}

/** Say how many of the chosen runs the reader may not change. @type {(others: number, chosen: number) => string} */
function refusalWords(others, chosen) {
  if (others === 0) return "";
  const which = chosen === 1 ? "this run" : others === chosen ? "these runs" : `${others} of these runs`;
  return `You cannot change ${which}: only the owner or an admin can.`;
}
