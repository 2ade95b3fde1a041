// Boxes in which a reader changes runs: their name and tags, or that they are there. Nothing is done before it was answered.

import { send } from "./api.js";
import { h } from "./dom.js";
import { plural } from "./format.js";

/** @import { Summary } from "../types/page.js" */

const NAMED_MAX = 8;

/**
 * Opens a box.
 * @param {HTMLDialogElement} dialog
 * @param {() => void} answered called where it was closed by its deed
 */
export function ask(dialog, answered) {
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (dialog.returnValue === "do") answered();
  });
  document.body.append(dialog);
  dialog.showModal();
}

/** @param {Summary} run */
export function pathOf(run) {
  return `/runs/${encodeURIComponent(run.run_id)}`;
}

/** @param {Summary[]} runs */
export function deleting(runs) {
  const named = runs.slice(0, NAMED_MAX).map((run) => h("li", {}, h("bdi", {}, run.name), ` · ${run.project} · ${plural(run.updates, "step")}`));
  const more = runs.length - named.length;
  const dialog = asking(
    `Delete ${plural(runs.length, "run")}?`,
    [
      h("ul", {}, ...named),
      more ? h("p", {}, `and ${plural(more, "other")}.`) : null,
      h("p", {}, "This cannot be undone. The server discards records of this run that still arrive."),
    ],
    "Delete",
  );
  return { dialog, work: (/** @type {Summary} */ run) => send("DELETE", pathOf(run)) };
}

/** @param {Summary} run */
export function editing(run) {
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
