// What a reader must know before trusting the page: data that is missing, a monitor that failed, a scaler that is off.
// A report says the same: one golden file tests both.

import { h } from "./dom.js";
import { count, plural } from "./format.js";
import { html, render } from "./lit-html.js";

/** @import { Summary } from "../types/page.js" */

/**
 * @param {Summary} run
 * @param {boolean} gapsTold whether a finding says already which data is missing
 * @param {string[]} failed rules that could not judge the run
 * @returns {string[]}
 */
export function noticesOf(run, gapsTold = false, failed = []) {
  return [...failedOf(failed), ...(gapsTold ? [] : gapsOf(run)), ...othersOf(run)];
}

/** @param {string[]} rules */
function failedOf(rules) {
  return rules.length
    ? [`Findings may be missing: ${plural(rules.length, "rule")} could not judge this run (${rules.join(", ")}).`]
    : [];
}

/** @param {Summary} run */
function gapsOf(run) {
  const notices = [];
  if (run.lost_records > 0) {
    notices.push(
      `${plural(run.lost_records, "record")} of ${count(run.records + run.lost_records)} missing: numbered by the ` +
        "training process, never received. Charts and counts leave them out. What its machine still has on disk is sent " +
        "when ampmon next runs there." +
        (run.dropped > 0 ? " Records dropped there are missing too." : ""),
    );
  }
  if (run.dropped > 0) {
    notices.push(
      `${plural(run.dropped, "record")} dropped on the training machine: its disk was full, or what waited to be sent had taken all ` +
        "the room that it may. Free some space there, set AMPMON_DIR to another disk, or allow more by AMPMON_SPOOL_BYTES.",
    );
  }
  if (run.rivals > 0) {
    notices.push(
      `${plural(run.rivals, "process went", "processes went")} on training as a rank of this run while a later start of the ` +
        "same rank did too. Both are stored, and where both have a step the later start's is shown. If they are two " +
        "trainings, give each a run of its own: unset AMPMON_RUN_ID, or pass another run_id to ampmon.init(). If the older " +
        "one is left over, end it.",
    );
  }
  return notices;
}

/** @param {Summary} run */
function othersOf(run) {
  const notices = [];
  if (run.thinned > 0) {
    notices.push(
      `Samples of ${plural(run.thinned, "step")} left out on the training machine, to keep within the room that its ` +
        "records may take there. Scale and skips are whole; figures of the gradients have fewer samples.",
    );
  }
  if (run.loss_window_ms !== null && run.status !== "finished") {
    const why = run.loss_window_why ? `, because ${run.loss_window_why}` : "";
    const lost = run.status === "crashed" ? "the process that was killed may have lost" : "a killed process may lose";
    notices.push(`Records pass through memory${why}; ${lost} the last ${count(run.loss_window_ms)} ms.`);
  }
  if (run.errors > 0) {
    notices.push(
      `The monitor itself failed ${plural(run.errors, "time")}; training was not touched. The run's events say where.`,
    );
  }
  if (run.disabled) {
    notices.push(
      "The scaler is disabled, as it is for bf16 and on machines without a GPU: it scales nothing and skips nothing.",
    );
  }
  return notices;
}

export class Notices {
  element = h("ul", { class: "notices", role: "status", hidden: true });

  /**
   * @param {Summary} run
   * @param {boolean} gapsTold
   * @param {string[]} failed
   */
  update(run, gapsTold, failed) {
    this.show(noticesOf(run, gapsTold, failed));
  }

  /** @param {string[]} notices */
  show(notices) {
    this.element.hidden = notices.length === 0;
    render(notices.map((words) => html`<li>${words}</li>`), this.element);
  }
}
