// How the alert of a finding stands: since when it fires, who was told and who was not, and what a reader can do about it.

import { send } from "./api.js";
import { html } from "./lit-html.js";
import { tried } from "./toast.js";

/** @import { Told } from "./lit-html.js" */
/** @import { Alert, Delivery } from "../types/page.js" */

const LISTED = new Intl.ListFormat("en-GB");
const HOUR_US = 3600e6;
/** For how long an alert can be muted. @type {[words: string, us: number | null][]} */
const MUTES = [
  ["for 1 hour", HOUR_US],
  ["for 1 day", 24 * HOUR_US],
  ["forever", null],
];

/**
 * An alert in a line below its finding, or by itself where the finding is gone.
 * @param {string} run
 * @param {Alert | null} alert
 * @param {() => void} onChange called when it may stand otherwise
 * @param {{title?: string, may?: boolean}} [told] what was found, where no finding says it; whether the reader may change it
 */
export function alertLine(run, alert, onChange, { title = "", may = true } = {}) {
  if (alert === null) return "";
  const open = may && alert.state !== "resolved";
  const trouble = troubles(alert.deliveries).join(" ");
  const act = (/** @type {Parameters<typeof send>} */ ...call) => void tried(() => send(...call)).then(onChange);
  const acknowledge = () => act("POST", `/runs/${encodeURIComponent(run)}/alerts/${encodeURIComponent(alert.rule)}/acknowledge`);
  const mute = (/** @type {Told} */ { target }) => {
    const us = MUTES[Number(target.value)]?.[1] ?? null;
    target.value = "";
    act("POST", "/mutes", { run_id: run, rule: alert.rule, until: us && Date.now() * 1000 + us });
  };
  const lift = () => act("DELETE", `/mutes/${encodeURIComponent(alert.mute?.mute_id ?? "")}`);
  // What is muted for a whole project is lifted where it was muted.
  return html`<div class="alert" data-state=${alert.state}>
    <p class="standing">${title ? `${title}: ${standing(alert)}` : sentence(standing(alert))}</p>
    <p class="why" ?hidden=${!trouble}>${trouble}</p>
    <p class="deeds">
      <button type="button" ?hidden=${!open || alert.acknowledged !== null} @click=${acknowledge}>Acknowledge</button>
      <select aria-label="Mute this alert" title="Mute notifications" ?hidden=${!open || alert.mute !== null} @change=${mute}>
        <option value="">Mute…</option>
        ${MUTES.map(([words], index) => html`<option value=${index}>${words}</option>`)}
      </select>
      <button type="button" ?hidden=${!may || alert.mute?.run_id !== run} @click=${lift}>Unmute</button>
    </p>
  </div>`;
}

/** How an alert stands, as the end of a sentence: "firing since 12:03, sent to phone and mail". @param {Alert} alert */
export function standing(alert) {
  const parts = [begun(alert)];
  const told = alert.deliveries.filter(({ sent }) => sent !== null).map(({ target }) => target);
  if (told.length > 0) parts.push(`sent to ${LISTED.format(told)}`);
  else if (alert.state === "firing" && !alert.mute) parts.push("not sent yet");
  if (alert.mute) parts.push(alert.mute.until === null ? "muted" : `muted until ${hour(alert.mute.until)}`);
  if (alert.acknowledged_by !== null && alert.state !== "resolved") parts.push(`acknowledged by ${alert.acknowledged_by}`);
  return `${parts.join(", ")}.`;
}

/** @param {Alert} alert */
function begun({ state, since, fired, resolved }) {
  if (state === "pending") return `pending since ${hour(since)}, sent if it lasts`;
  if (state === "firing") return `firing since ${hour(fired ?? since)}`;
  return `resolved at ${hour(resolved ?? since)}, fired at ${hour(fired ?? since)}`;
}

/** A sentence for each target that was not told. @param {Delivery[]} deliveries */
export function troubles(deliveries) {
  return deliveries.filter(({ trouble }) => trouble !== null).map(
    ({ target, trouble, due }) => `Not delivered to ${target}: ${trouble}; next attempt: ${attempt(due)}.`,
  );
}

/** When a message that was not delivered is sent again. @param {number | null} due */
export function attempt(due) {
  return due === null ? "none (gave up)" : hour(due);
}

/** What a closed finding says of its alert, in a word; "" where there is nothing to say. @param {Alert | null} alert */
export function wordOf(alert) {
  if (alert === null || alert.state === "resolved") return "";
  if (alert.mute) return "muted";
  if (alert.acknowledged !== null) return "acknowledged";
  return alert.state;
}

/**
 * A time of day by the reader's clock, with its date where that is not today's.
 * @param {number} time in microseconds
 */
export function hour(time) {
  const then = new Date(time / 1000);
  const today = then.toDateString() === new Date().toDateString();
  return then.toLocaleString(undefined, { ...(today ? {} : { dateStyle: "medium" }), timeStyle: "short" });
}

/** @param {string} words */
function sentence(words) {
  return words.charAt(0).toUpperCase() + words.slice(1);
}
