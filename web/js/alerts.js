// A finding's alert: since when it fires, where messages about it went, and buttons to acknowledge or mute it.

import { send } from "./api.js";
import { sentence } from "./format.js";
import { html } from "./lit-html.js";
import { succeeded } from "./toast.js";

const LISTED = new Intl.ListFormat("en-GB");
const HOUR_US = 3600e6;
/** Durations of a mute; null has no end. @type {[words: string, us: number | null][]} */
const MUTES = [
  ["for 1 hour", HOUR_US],
  ["for 1 day", 24 * HOUR_US],
  ["forever", null],
];

/** Render an alert below its finding, or alone if the finding is gone. `onChange` is called after each action. `title`
 * is shown if no finding shows it; `may` is whether the reader may change the alert.
 * @param {string} run @param {Alert | null} alert @param {() => void} onChange @param {{title?: string, may?: boolean}} [told] */
export function alertLine(run, alert, onChange, { title = "", may = true } = {}) {
  if (alert === null) return "";
  const open = may && alert.state !== "resolved";
  const trouble = failuresOf(alert.deliveries).join(" ");
  const act = (/** @type {Parameters<typeof send>} */ ...call) => void succeeded(() => send(...call)).then(onChange);
  const acknowledge = () => act("POST", `/runs/${encodeURIComponent(run)}/alerts/${encodeURIComponent(alert.rule)}/acknowledge`);
  const mute = (/** @type {Told} */ { target }) => {
    const us = MUTES[Number(target.value)]?.[1] ?? null;
    target.value = "";
    act("POST", "/mutes", { run_id: run, rule: alert.rule, until: us && Date.now() * 1000 + us });
  };
  const lift = () => act("DELETE", `/mutes/${encodeURIComponent(alert.mute?.mute_id ?? "")}`);
  // Only a mute of this run is lifted here. The alerts page lists wider ones.
  return html`<div class="alert" data-state=${alert.state}>
    <p class="standing">${title ? `${title}: ${stateWords(alert)}` : sentence(stateWords(alert))}</p>
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

/** An alert's state as the end of a sentence: "firing since 12:03, sent to phone and mail". @param {Alert} alert */
export function stateWords(alert) {
  const parts = [sinceWords(alert)];
  const told = alert.deliveries.filter(({ sent }) => sent !== null).map(({ target }) => target);
  if (told.length > 0) parts.push(`sent to ${LISTED.format(told)}`);
  else if (alert.state === "firing" && !alert.mute) parts.push("not sent yet");
  if (alert.mute) parts.push(alert.mute.until === null ? "muted" : `muted until ${hour(alert.mute.until)}`);
  if (alert.acknowledged_by !== null && alert.state !== "resolved") parts.push(`acknowledged by ${alert.acknowledged_by}`);
  return `${parts.join(", ")}.`;
}

/** @param {Alert} alert */
function sinceWords({ state, since, fired, resolved }) {
  if (state === "pending") return `pending since ${hour(since)}, sent if it lasts`;
  if (state === "firing") return `firing since ${hour(fired ?? since)}`;
  return `resolved at ${hour(resolved ?? since)}, fired at ${hour(fired ?? since)}`;
}

/** One sentence for each failed delivery. @param {Delivery[]} deliveries */
export function failuresOf(deliveries) {
  return deliveries.filter(({ trouble }) => trouble !== null).map(
    ({ target, trouble, due }) => `Not delivered to ${target}: ${trouble}; next attempt: ${attempt(due)}.`,
  );
}

/** When a failed delivery is tried again, in words. @param {number | null} due */
export function attempt(due) {
  return due === null ? "none (gave up)" : hour(due);
}

/** An alert's state in a word, for a collapsed finding; "" if there is none to show. @param {Alert | null} alert */
export function wordOf(alert) {
  if (alert === null || alert.state === "resolved") return "";
  if (alert.mute) return "muted";
  if (alert.acknowledged !== null) return "acknowledged";
  return alert.state;
}

/** The local time of day, with the date unless it is today. @param {number} time in microseconds */
export function hour(time) {
  const then = new Date(time / 1000);
  const today = then.toDateString() === new Date().toDateString();
  return then.toLocaleString(undefined, { ...(today ? {} : { dateStyle: "medium" }), timeStyle: "short" });
}
