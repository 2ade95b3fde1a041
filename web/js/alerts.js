// Alerts: that of a finding, with buttons to acknowledge or mute it, and the page of those of all runs.

import { mayChange } from "./account.js";
import { format, wholeView } from "./address.js";
import { succeeded } from "./browser.js";
import { h, html, render, verdictBadge } from "./dom.js";
import { count, sentence } from "./format.js";
import { paced } from "./pace.js";
import { get, send, urlOf } from "./server.js";
import { Ledger, Table } from "./table.js";

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

const READ_MS = 2000;
const ROWS = 20;
const NONE_SENT = "No message was sent. Test your destinations: ampmon alerts test --alerts alerts.toml";
/** @type {OpenAlert["severity"][]} */
const WORST_FIRST = ["critical", "warning", "notice"];

const CONFIGURATION = `[[targets]]
name = "phone"
url = "ntfys://ntfy.sh/ampmon-3f9c1a7e"`;

export class AlertsPage {
  title = "Alerts";
  /** @type {string[]} */
  follows = [];
  element = h("div", { class: "alerts-page" }, h("h1", {}, "Alerts"));
  #started = false;
  #read = paced(() => this.#now(), READ_MS);
  #firing = ledger("Firing now", this.#alertColumns(), alertKey, (limit) => this.#open("firing", limit, "No alert is firing."));
  #pending = ledger("Pending", this.#alertColumns(), alertKey, (limit) => this.#open("pending", limit, ""));
  #failed = ledger("Failed or waiting", FAILED, messageKey, (limit) => messages(false, limit, "Every message was delivered."));
  #muted = ledger("Muted", [...MUTED, { name: "Action", cell: (mute) => this.#unmute(mute) }], ({ mute_id }) => mute_id, mutes);
  #sent = ledger("Sent in the last 7 days", SENT, messageKey, (limit) => messages(true, limit, NONE_SENT));
  /** @type {OpenAlert[]} */
  #alerts = [];

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

  /** Ignore errors: a later refresh fetches again. */
  async #now() {
    await this.#fetch().catch(() => {});
  }

  async #fetch() {
    const { configured, alerts } = /** @type {{configured: boolean, alerts: OpenAlert[]}} */ (await get("/alerts"));
    const sections = [this.#firing, this.#pending, this.#failed, this.#muted, this.#sent];
    this.#alerts = alerts.toSorted((one, other) => WORST_FIRST.indexOf(one.severity) - WORST_FIRST.indexOf(other.severity));
    if (configured) await Promise.all(sections.map((section) => section.refresh()));
    this.#started = true;
    this.#pending.element.hidden = !alerts.some(({ state }) => state === "pending");
    render(configured ? sections.map(({ element }) => element) : html`<div class="first">${SETUP}</div>`, this.element);
  }

  /** @type {(state: OpenAlert["state"], limit: number, none: string) => Promise<Read<OpenAlert>>} */
  async #open(state, limit, none) {
    return rowsShown(this.#alerts.filter((alert) => alert.state === state), limit, none);
  }

  /** @returns {Column<OpenAlert>[]} */
  #alertColumns() {
    return [
      { name: "Severity", tight: true, cell: ({ severity }) => verdictBadge(severity) },
      { name: "Finding", cell: ({ title }) => unquoted(title) },
      RUN,
      { name: "Status", cell: (alert) => alertLine(alert.run_id, alert, () => void this.#now(), { may: mayChange(alert) }) },
    ];
  }

  /** @param {ListedMute} mute */
  #unmute({ mute_id, owner }) {
    const lift = () => void succeeded(() => send("DELETE", `/mutes/${encodeURIComponent(mute_id)}`)).then(() => this.#now());
    return mayChange({ owner }) ? html`<button type="button" @click=${lift}>Unmute</button>` : "";
  }
}

/** @template Row @param {string} title @param {Column<Row>[]} columns @param {(row: Row) => string} key
 * @param {(limit: number) => Promise<Read<Row>>} read */
function ledger(title, columns, key, read) {
  return new Ledger(title, title, new Table(title, columns, key), read, { limit: ROWS });
}

/** @type {(sent: boolean, limit: number, none: string) => Promise<Read<Message>>} */
async function messages(sent, limit, none) {
  const { messages, total } = /** @type {{messages: Message[], total: number}} */ (await get(`/alerts/messages?sent=${sent}&limit=${limit}`));
  return rowsShown(messages, limit, none, total);
}

/** @type {(limit: number) => Promise<Read<ListedMute>>} */
async function mutes(limit) {
  const { mutes } = /** @type {{mutes: ListedMute[]}} */ (await get("/mutes"));
  return rowsShown(mutes.filter(({ until }) => until === null || until > Date.now() * 1000), limit, "Nothing is muted.");
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

/** @type {Column<Message>[]} */
const FAILED = [
  { name: "Destination", cell: ({ target }) => target },
  RUN,
  { name: "Message", cell: ({ title }) => unquoted(title) },
  { name: "Error", cell: ({ trouble }) => trouble ?? "none yet" },
  { name: "Attempts", number: true, cell: ({ attempts }) => String(attempts) },
  { name: "Next attempt", tight: true, cell: ({ due }) => attempt(due) },
];

/** @type {Column<Message>[]} */
const SENT = [
  { name: "Sent", tight: true, cell: ({ sent }) => hour(sent ?? 0) },
  { name: "Destination", cell: ({ target }) => target },
  RUN,
  { name: "Message", cell: ({ title }) => unquoted(title) },
];

/** @type {Column<ListedMute>[]} */
const MUTED = [
  { name: "Muted", cell: muted },
  { name: "Rule", cell: ({ rule }) => rule ?? "all rules" },
  { name: "Until", tight: true, cell: ({ until }) => (until === null ? "forever" : hour(until)) },
  { name: "Muted by", cell: ({ made_by }) => made_by },
];

/** @param {{run_id: string, rule: string}} alert */
function alertKey({ run_id, rule }) {
  return `${run_id} ${rule}`;
}

/** @param {Message} message */
function messageKey({ run_id, rule, target, made }) {
  return `${run_id} ${rule} ${target} ${made}`;
}

/** @type {(run: string, name: string) => TemplateResult} */
function link(run, name) {
  return html`<a href=${format({ page: "run", run, view: wholeView() })}><bdi>${name}</bdi></a>`;
}

/** @param {string} title of a finding, with names in backticks */
function unquoted(title) {
  return title.replaceAll("`", "");
}

/** The scope of a mute: a run, a project or all projects. @param {ListedMute} mute */
function muted({ run_id, name, project }) {
  if (run_id !== null) return link(run_id, name ?? "run");
  return project === null ? "all projects" : `project ${project}`;
}

/** @param {string} text */
function preformatted(text) {
  return html`<pre tabindex="0"><code>${text}</code></pre>`;
}

const SETUP = html`
  <p class="description">This server sends no alerts. It can send a message to a phone, a chat or a mailbox when a run diverges, hangs or dies.</p>
  <p>1. Install Apprise beside the server:</p>
  ${preformatted("pip install 'ampmon[server,alerts]'")}
  <p>2. Write a file alerts.toml with your destinations, for example a topic of the app ntfy:</p>
  ${preformatted(CONFIGURATION)}
  <p>3. Protect the file, send a test alert, and restart the server:</p>
  ${preformatted("chmod 600 alerts.toml\nampmon alerts test --alerts alerts.toml\nampmon serve --alerts alerts.toml")}
  <p><a href=${urlOf("docs/alerts.html")}>Learn more about alerts</a></p>
`;
