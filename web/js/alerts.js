// How the alert of a finding stands: since when it fires, who was told and who was not, and what a reader can do about it.

import { send } from "./api.js";
import { h, mark, say } from "./dom.js";
import { toast } from "./toast.js";

/** @import { Alert, Delivery } from "../types/page.js" */

const HOUR_US = 3600e6;
/** For how long an alert can be muted. @type {[words: string, us: number | null][]} */
const MUTES = [
  ["for 1 hour", HOUR_US],
  ["for 1 day", 24 * HOUR_US],
  ["forever", null],
];

/** One alert, in a line below its finding, or by itself where the finding is gone. */
export class AlertLine {
  #standing = h("p", { class: "standing" });
  #trouble = h("p", { class: "why" });
  #acknowledge = h("button", { type: "button", onclick: () => void this.#acknowledged() }, "Acknowledge");
  #mute = h(
    "select",
    { "aria-label": "Mute this alert", title: "Mute notifications", onchange: () => void this.#muted() },
    h("option", { value: "" }, "Mute…"),
    ...MUTES.map(([words], index) => h("option", { value: index }, words)),
  );
  #lift = h("button", { type: "button", onclick: () => void this.#lifted() }, "Unmute");
  /** @type {Alert | null} */
  #alert = null;
  element = h("div", { class: "alert", hidden: true }, this.#standing, this.#trouble, h("p", { class: "deeds" }, this.#acknowledge, this.#mute, this.#lift));

  /**
   * @param {string} run
   * @param {() => void} onChange called when it may stand otherwise
   */
  constructor(run, onChange) {
    this.run = run;
    this.onChange = onChange;
  }

  /**
   * @param {Alert | null} alert
   * @param {string} [title] what was found, where no finding says it
   * @param {boolean} [may] whether the reader may change it
   */
  show(alert, title = "", may = true) {
    this.#alert = alert;
    this.element.hidden = alert === null;
    if (alert === null) return;
    const open = may && alert.state !== "resolved";
    mark(this.element, "data-state", alert.state);
    say(this.#standing, title ? `${title}: ${standing(alert)}` : sentence(standing(alert)));
    const trouble = troubles(alert.deliveries).join(" ");
    this.#trouble.hidden = trouble === "";
    say(this.#trouble, trouble);
    this.#acknowledge.hidden = !open || alert.acknowledged !== null;
    this.#mute.hidden = !open || alert.mute !== null;
    // What is muted for a whole project is lifted where it was muted.
    this.#lift.hidden = !may || alert.mute?.run_id !== this.run;
  }

  async #acknowledged() {
    await this.#do("POST", `/runs/${encodeURIComponent(this.run)}/alerts/${encodeURIComponent(this.#alert?.rule ?? "")}/acknowledge`);
  }

  async #muted() {
    const chosen = MUTES[Number(this.#mute.value)];
    this.#mute.value = "";
    if (!chosen || !this.#alert) return;
    const until = chosen[1] === null ? null : Date.now() * 1000 + chosen[1];
    await this.#do("POST", "/mutes", { run_id: this.run, rule: this.#alert.rule, until });
  }

  async #lifted() {
    if (this.#alert?.mute) await this.#do("DELETE", `/mutes/${encodeURIComponent(this.#alert.mute.mute_id)}`);
  }

  /**
   * @param {"POST" | "DELETE"} method
   * @param {string} path
   * @param {object} [body]
   */
  async #do(method, path, body) {
    try {
      await send(method, path, body);
    } catch (error) {
      toast(`Action failed: ${error instanceof Error ? error.message : error}`);
    }
    this.onChange();
  }
}

/**
 * How an alert stands, as the end of a sentence: "firing since 12:03, sent to phone and mail".
 * @param {Alert} alert
 */
export function standing(alert) {
  const parts = [begun(alert)];
  const told = alert.deliveries.filter(({ sent }) => sent !== null).map(({ target }) => target);
  if (told.length > 0) parts.push(`sent to ${listed(told)}`);
  else if (alert.state === "firing" && !alert.mute) parts.push("not sent yet");
  if (alert.mute) parts.push(alert.mute.until === null ? "muted" : `muted until ${clock(alert.mute.until)}`);
  if (alert.acknowledged_by !== null && alert.state !== "resolved") parts.push(`acknowledged by ${alert.acknowledged_by}`);
  return `${parts.join(", ")}.`;
}

/** @param {Alert} alert */
function begun({ state, since, fired, resolved }) {
  if (state === "pending") return `pending since ${clock(since)}, sent if it lasts`;
  if (state === "firing") return `firing since ${clock(fired ?? since)}`;
  return `resolved at ${clock(resolved ?? since)}, fired at ${clock(fired ?? since)}`;
}

/**
 * A sentence for each target that was not told.
 * @param {Delivery[]} deliveries
 */
export function troubles(deliveries) {
  return deliveries.filter(({ trouble }) => trouble !== null).map(
    ({ target, trouble, due }) => `Not delivered to ${target}: ${trouble}; next attempt: ${attempt(due)}.`,
  );
}

/**
 * When a message that was not delivered is sent again.
 * @param {number | null} due
 */
export function attempt(due) {
  return due === null ? "none (gave up)" : clock(due);
}

/**
 * What a closed finding says of its alert, in a word; "" where there is nothing to say.
 * @param {Alert | null} alert
 */
export function wordOf(alert) {
  if (alert === null || alert.state === "resolved") return "";
  if (alert.mute) return "muted";
  if (alert.acknowledged !== null) return "acknowledged";
  return alert.state;
}

/**
 * A time of day by the reader's clock, with its date where that is not today's.
 * @param {number} time microseconds since the epoch
 */
export function clock(time) {
  const then = new Date(time / 1000);
  const today = then.toDateString() === new Date().toDateString();
  return then.toLocaleString(undefined, { ...(today ? {} : { dateStyle: "medium" }), timeStyle: "short" });
}

/** @param {string[]} names */
function listed(names) {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

/** @param {string} words */
function sentence(words) {
  return words.charAt(0).toUpperCase() + words.slice(1);
}
