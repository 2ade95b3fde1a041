// Changes to runs: name and tags, archiving, deletion. A dialog comes before an edit or a deletion.

import { send } from "./api.js";
import { h } from "./dom.js";
import { plural } from "./format.js";
import { html, render } from "./lit-html.js";
import { succeeded } from "./toast.js";
import { mayChange } from "./account.js";

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

/** @param {Pick<Summary, "run_id">} run */
export function pathOf({ run_id }) {
  return `/runs/${encodeURIComponent(run_id)}`;
}

/** @param {boolean} archived @returns {RunChange} */
export function archiving(archived) {
  return (run) => send("PATCH", pathOf(run), { archived });
}

/** Confirm a deletion in a dialog. @param {Summary[]} runs @param {(work: RunChange) => void} onAnswer */
export function remove(runs, onAnswer) {
  const named = runs.slice(0, NAMED_MAX).map((run) => html`<li><bdi>${run.name}</bdi> · ${run.project} · ${plural(run.updates, "step")}</li>`);
  const more = runs.length - named.length;
  const words = html`
    <ul>${named}</ul>
    <p ?hidden=${more === 0}>and ${plural(more, "other")}.</p>
    <p>This cannot be undone. The server discards records of this run that still arrive.</p>
  `;
  ask(`Delete ${plural(runs.length, "run")}?`, words, "Delete", () => onAnswer((run) => send("DELETE", pathOf(run))));
}

/** Edit a run's name and tags in a dialog. @param {Summary} run @param {(work: RunChange) => void} onAnswer */
export function edit(run, onAnswer) {
  const written = run.tags.join(", ");
  const fields = html`
    <label>Name<input name="name" .value=${run.name} maxlength="256" required dir="auto"></label>
    <label>Tags, separated by commas<input name="tags" .value=${written} dir="auto"></label>
  `;
  ask("Edit run", fields, "Save", (form) => {
    const tags = String(form.get("tags"));
    // A tag may have a comma, so tags that were not changed are not sent.
    const changed = tags !== written && { tags: [...new Set(tags.split(",").map((tag) => tag.trim()).filter(Boolean))] };
    onAnswer((edited) => send("PATCH", pathOf(edited), { name: form.get("name"), ...changed }));
  });
}

/** Open a dialog, and call `answered` if its button `deed` closes it.
 * @type {(title: string, content: TemplateResult, deed: string, answered: (form: FormData) => void) => void} */
function ask(title, content, deed, answered) {
  const dialog = document.body.appendChild(h("dialog", { class: "asking", "aria-label": title }));
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (dialog.returnValue === "do") answered(new FormData(dialog.querySelector("form") ?? undefined));
  });
  // The form's only submit button, which Enter in a field presses, closes the dialog with its value. Escape gives none.
  render(
    html`<form method="dialog">
      <h2>${title}</h2>
      ${content}
      <p class="answers"><button type="button" @click=${() => dialog.close()}>Cancel</button><button value="do" class="deed">${deed}</button></p>
    </form>`,
    dialog,
  );
  dialog.showModal();
}
