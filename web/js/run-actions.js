// Changes to runs: name and tags, archiving, deletion. A dialog comes before an edit or a deletion.

import { mayChange } from "./account.js";
import { succeeded } from "./browser.js";
import { MOST } from "./compare.js";
import { h, html, openDialog, render } from "./dom.js";
import { plural } from "./format.js";
import { pathOf, Refused, send, wordsOf } from "./server.js";

const NAMED_MAX = 8;

/** @type {(run: Summary, onChange: () => void, onDeleted: () => void) => TemplateResult} */
export function runActions(run, onChange, onDeleted) {
  const act = async (/** @type {RunChange} */ work, then = onChange) => (await succeeded(() => work(run))) && then();
  return html`<p class="own" ?hidden=${!mayChange(run)}>
    <button type="button" class="quiet" @click=${() => edit(run, act)}>Edit…</button>
    <button type="button" class="quiet" @click=${() => void act(archiving(!run.archived))}>${run.archived ? "Unarchive" : "Archive"}</button>
    <button type="button" class="quiet" @click=${() => remove([run], (work) => void act(work, onDeleted))}>Delete…</button>
  </p>`;
}

/** @param {boolean} archived @returns {RunChange} */
function archiving(archived) {
  return (run) => send("PATCH", pathOf(run.run_id), { archived });
}

/** Confirm a deletion in a dialog. @param {Summary[]} runs @param {(work: RunChange) => void} onAnswer */
function remove(runs, onAnswer) {
  const named = runs.slice(0, NAMED_MAX).map((run) => html`<li><bdi>${run.name}</bdi> · ${run.project} · ${plural(run.updates, "step")}</li>`);
  const more = runs.length - named.length;
  const words = html`
    <ul>${named}</ul>
    <p ?hidden=${more === 0}>and ${plural(more, "other")}.</p>
    <p>This cannot be undone. The server discards records that still arrive.</p>
  `;
  ask(`Delete ${plural(runs.length, "run")}?`, words, "Delete", () => onAnswer((run) => send("DELETE", pathOf(run.run_id))));
}

/** Edit a run's name and tags in a dialog. @param {Summary} run @param {(work: RunChange) => void} onAnswer */
function edit(run, onAnswer) {
  const written = run.tags.join(", ");
  const fields = html`
    <label>Name<input name="name" .value=${run.name} maxlength="256" required dir="auto"></label>
    <label>Tags, separated by commas<input name="tags" .value=${written} dir="auto"></label>
  `;
  ask("Edit run", fields, "Save", (form) => {
    const name = form.get("name");
    const tags = String(form.get("tags"));
    // What was not changed is not sent: somebody else may have changed it, and a tag may have a comma.
    const named = name !== run.name && { name };
    const tagged = tags !== written && { tags: [...new Set(tags.split(",").map((tag) => tag.trim()).filter(Boolean))] };
    onAnswer((edited) => send("PATCH", pathOf(edited.run_id), { ...named, ...tagged }));
  });
}

/** Ask in a dialog, and call `answered` if its button `deed` closes it. That is the form's only submit button, which Enter
 * in a field presses. Escape gives no value.
 * @type {(title: string, content: TemplateResult, deed: string, answered: (form: FormData) => void) => void} */
function ask(title, content, deed, answered) {
  const cancel = (/** @type {UserEvent} */ { currentTarget }) => currentTarget.closest("dialog")?.close();
  const form = html`<form method="dialog">
    <h2>${title}</h2>
    ${content}
    <footer><button type="button" @click=${cancel}>Cancel</button><button value="do" class="deed">${deed}</button></footer>
  </form>`;
  openDialog({ class: "sheet asking", "aria-label": title }, form, (dialog) => {
    if (dialog.returnValue === "do") answered(new FormData(dialog.querySelector("form") ?? undefined));
  });
}

/** The bar of what the reader can do with the selected runs: compare, rename and tag, archive, delete. */
export class Actions {
  /** As the list shows them now. @type {Map<string, Summary>} */
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
        <button type="button" @click=${() => this.chosen.forEach((run) => edit(run, act))} ?hidden=${runs.length !== 1 || others > 0}>Edit…</button>
        <button type="button" @click=${() => act(archiving(!archived))} ?hidden=${others > 0}>${archived ? "Unarchive" : "Archive"}</button>
        <button type="button" @click=${() => remove([...this.chosen.values()], act)} ?hidden=${others > 0}>Delete…</button>
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
      this.#describe();
    } catch (error) {
      this.#describe(`Action failed: ${wordsOf(error)}`);
    }
    this.onChange();
  }
}

/** Say how many of the chosen runs the reader may not change. @type {(others: number, chosen: number) => string} */
function refusalWords(others, chosen) {
  const which = chosen === 1 ? "this run" : others === chosen ? "these runs" : `${others} of these runs`;
  return others ? `You cannot change ${which}: only the owner or an admin can.` : "";
}
