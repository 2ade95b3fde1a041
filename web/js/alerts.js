// Alerts: that of a finding, with buttons to acknowledge or mute it, and the page of those of all runs.

import { mayChange } from "./account.js";
import { format, wholeView } from "./address.js";
import { succeeded } from "./browser.js";
import { copyOf, h, html, render, verdictBadge } from "./dom.js";
import { count, sentence, unquoted } from "./format.js";
import { paced } from "./pace.js";
import { get, pathOf, send } from "./server.js";
import { Ledger } from "./table.js";

const READ_MS = 2000;
const ROWS = 20;
/** @type {OpenAlert["severity"][]} */
const WORST_FIRST = ["critical", "warning", "notice"];
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
 * @param {string} run @param {Alert | null} alert @param {() => void} onChange @param {{title?: string, may?: boolean}} [words] */
export function alertLine(run, alert, onChange, { title = "", may = true } = {}) {
  if (alert === null) return "";
  const open = may && alert.state !== "resolved";
  const trouble = failuresOf(alert.deliveries).join(" ");
  const act = (/** @type {Parameters<typeof send>} */ ...call) => void succeeded(() => send(...call)).then(onChange);
  const acknowledge = () => act("POST", `${pathOf(run)}/alerts/${encodeURIComponent(alert.rule)}/acknowledge`);
  const mute = (/** @type {UserEvent} */ { target }) => {
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
  const targets = alert.deliveries.filter(({ sent }) => sent !== null).map(({ target }) => target);
  if (targets.length > 0) parts.push(`sent to ${LISTED.format(targets)}`);
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
export const attempt = (due) => due === null ? "none (gave up)" : hour(due);

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

/** The page of all alerts: firing and pending ones, failed and sent messages, and mutes, of all runs that the reader can see. */
export class AlertsPage {
  title = "Alerts";
  element = h("div", { class: "alerts-page" }, h("h1", { tabindex: -1 }, "Alerts"));
  #started = false;
  #setup = copyOf("alerts-setup");
  // A later refresh fetches again after an error.
  #read = paced(() => this.#fetch().catch(() => {}), READ_MS);
  /** @type {OpenAlert[]} */
  #alerts = [];
  #pending = this.#open("pending", "Pending", "");
  #ledgers = [
    this.#open("firing", "Firing now", "No alert is firing."),
    this.#pending,
    messages(false, "Failed or waiting", FAILED, "Every message was delivered."),
    this.#mutes(),
    messages(true, "Sent in the last 7 days", SENT, "No message was sent. Test your destinations: ampmon alerts test --alerts alerts.toml"),
  ];

  /** Fetch at once the first time, then at most every 2 s. */
  async refresh() {
    if (this.#started) this.#read();
    else await this.#fetch();
  }

  /** @param {Address} address */
  look(address) {
    return address.page === "alerts";
  }

  close() {
    this.#read.stop();
  }

  async #fetch() {
    const { configured, alerts } = /** @type {{configured: boolean, alerts: OpenAlert[]}} */ (await get("/alerts"));
    this.#alerts = alerts.toSorted((one, other) => WORST_FIRST.indexOf(one.severity) - WORST_FIRST.indexOf(other.severity));
    if (configured) await Promise.all(this.#ledgers.map((ledger) => ledger.refresh()));
    this.#started = true;
    this.#pending.element.hidden = !alerts.some(({ state }) => state === "pending");
    render(configured ? this.#ledgers.map(({ element }) => element) : this.#setup, this.element);
  }

  /** The alerts in a state. @param {OpenAlert["state"]} state @param {string} title @param {string} none */
  #open(state, title, none) {
    /** @type {Column<OpenAlert>[]} */
    const columns = [
      { name: "Severity", tight: true, cell: ({ severity }) => verdictBadge(severity) },
      { name: "Finding", cell: ({ title }) => unquoted(title) },
      RUN,
      { name: "Status", cell: (alert) => alertLine(alert.run_id, alert, this.#read.now, { may: mayChange(alert) }) },
    ];
    const shown = () => this.#alerts.filter((alert) => alert.state === state);
    const key = (/** @type {OpenAlert} */ { run_id, rule }) => `${run_id} ${rule}`;
    return new Ledger({ title, columns, key, limit: ROWS, read: async (limit) => rowsShown(shown(), limit, none) });
  }

  #mutes() {
    /** @type {Column<ListedMute>[]} */
    const columns = [
      { name: "Muted", cell: muted },
      { name: "Rule", cell: ({ rule }) => rule ?? "all rules" },
      { name: "Until", tight: true, cell: ({ until }) => (until === null ? "forever" : hour(until)) },
      { name: "Muted by", cell: ({ made_by }) => made_by },
      { name: "Action", cell: (mute) => this.#unmute(mute) },
    ];
    const read = async (/** @type {number} */ limit) => {
      const { mutes } = /** @type {{mutes: ListedMute[]}} */ (await get("/mutes"));
      return rowsShown(mutes.filter(({ until }) => until === null || until > Date.now() * 1000), limit, "Nothing is muted.");
    };
    return new Ledger({ title: "Muted", columns, key: ({ mute_id }) => mute_id, limit: ROWS, read });
  }

  /** @param {ListedMute} mute */
  #unmute({ mute_id, owner }) {
    const lift = () => void succeeded(() => send("DELETE", `/mutes/${encodeURIComponent(mute_id)}`)).then(this.#read.now);
    return mayChange({ owner }) ? html`<button type="button" @click=${lift}>Unmute</button>` : "";
  }
}

/** The messages that were sent, or not.
 * @param {boolean} sent @param {string} title @param {Column<Message>[]} columns @param {string} none */
function messages(sent, title, columns, none) {
  const key = (/** @type {Message} */ { run_id, rule, target, made }) => `${run_id} ${rule} ${target} ${made}`;
  const read = async (/** @type {number} */ limit) => {
    const answer = await get(`/alerts/messages?sent=${sent}&limit=${limit}`);
    const { messages, total } = /** @type {{messages: Message[], total: number}} */ (answer);
    return rowsShown(messages, limit, none, total);
  };
  return new Ledger({ title, columns, key, limit: ROWS, read });
}

/** @template Row @param {Row[]} all @param {number} limit @param {string} none shown if there are no rows */
function rowsShown(all, limit, none, total = all.length) {
  const rows = all.slice(0, limit);
  const whole = rows.length === total;
  const words = whole ? count(total) : `${count(rows.length)} of ${count(total)}`;
  return { rows, more: whole ? "" : "Show more", count: total ? words : "", words: total ? "" : none };
}

/** @type {Column<{run_id: string, name: string, project: string}>} */
const RUN = { name: "Run", cell: ({ run_id, name, project }) => html`<span>${link(run_id, name)} in <bdi>${project}</bdi></span>` };

/** What both tables of messages show. @type {Column<Message>[]} */
const MESSAGE = [{ name: "Destination", cell: ({ target }) => target }, RUN, { name: "Message", cell: ({ title }) => unquoted(title) }];

/** @type {Column<Message>[]} */
const FAILED = [
  ...MESSAGE,
  { name: "Error", cell: ({ trouble }) => trouble ?? "none yet" },
  { name: "Attempts", number: true, cell: ({ attempts }) => String(attempts) },
  { name: "Next attempt", tight: true, cell: ({ due }) => attempt(due) },
];

/** @type {Column<Message>[]} */
const SENT = [{ name: "Sent", tight: true, cell: ({ sent }) => hour(sent ?? 0) }, ...MESSAGE];

/** @type {(run: string, name: string) => TemplateResult} */
const link = (run, name) => html`<a href=${format({ page: "run", run, view: wholeView() })}><bdi>${name}</bdi></a>`;

/** The scope of a mute: a run, a project or all projects. @param {ListedMute} mute */
function muted({ run_id, name, project }) {
  if (run_id !== null) return link(run_id, name ?? "run");
  return project === null ? "all projects" : `project ${project}`;
}
