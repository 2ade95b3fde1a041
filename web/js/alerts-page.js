// The page of alerts: what fires, which messages failed, what is muted and what was sent, in all runs that the reader sees.

import { format, wholeView } from "./address.js";
import { alertLine, attempt, clock } from "./alerts.js";
import { get, send } from "./api.js";
import { verdictBadge } from "./badge.js";
import { h } from "./dom.js";
import { count } from "./format.js";
import { html, render } from "./lit-html.js";
import { paced } from "./pace.js";
import { at } from "./root.js";
import { Table } from "./table.js";
import { tried } from "./toast.js";
import { mayChange } from "./who.js";

/** @import { Address, ListedMute, Message, OpenAlert } from "../types/page.js" */
/** @import { Column } from "./table.js" */

/** @typedef {{messages: Message[], total: number}} Messages */

const READ_MS = 2000;
const ROWS = 20;
/** The server lists no more. */
const ROWS_MAX = 1000;
const MORE = 5;
/** @type {OpenAlert["severity"][]} */
const WORST_FIRST = ["critical", "warning", "notice"];

const CONFIGURATION = `[[targets]]
name = "phone"
url = "ntfys://ntfy.sh/ampmon-3f9c1a7e"`;

/** Rows under a heading, a few until the reader asks for more. @template Row */
class Section {
  limit = ROWS;
  element;

  /**
   * @param {string} title
   * @param {string} none said where there are no rows; without it, nothing is shown then
   * @param {Table<Row>} table
   * @param {() => void} onMore called once it may have more rows
   */
  constructor(title, none, table, onMore) {
    this.title = title;
    this.none = none;
    this.table = table;
    this.onMore = onMore;
    this.element = h("section", { class: "ledger", "data-section": title, hidden: true });
  }

  /**
   * @param {Row[]} rows
   * @param {number} total
   */
  show(rows, total = rows.length) {
    const shown = rows.slice(0, this.limit);
    const all = shown.length === total;
    const words = all ? count(total) : `${count(shown.length)} of ${count(total)}`;
    this.element.hidden = total === 0 && this.none === "";
    this.table.update(shown);
    render(
      html`
        <header><h2>${this.title}</h2><span class="more">${total ? words : ""}</span></header>
        <p class="caption" ?hidden=${total > 0}>${this.none}</p>
        ${this.table.element}
        <button type="button" ?hidden=${all || this.limit === ROWS_MAX} @click=${() => this.#grow()}>Show more</button>
      `,
      this.element,
    );
  }

  #grow() {
    this.limit = Math.min(MORE * this.limit, ROWS_MAX);
    this.onMore();
  }
}

export class AlertsPage {
  title = "Alerts";
  /** @type {string[]} */
  follows = [];
  #started = false;
  #read = paced(() => this.#fetch().catch(() => {}), READ_MS);
  #now = () => void this.#fetch().catch(() => {});
  #firing = this.#section("Firing now", "No alert is firing.", this.#alertColumns(), alertKey);
  #pending = this.#section("Pending", "", this.#alertColumns(), alertKey);
  #failed = this.#section("Failed or waiting", "Every message was delivered.", FAILED, messageKey);
  #muted = this.#section("Muted", "Nothing is muted.", [...MUTED, { name: "Action", cell: (mute) => this.#unmute(mute) }], ({ mute_id }) => mute_id);
  #sent = this.#section("Sent in the last 7 days", "No message was sent. Test your destinations: ampmon alerts test --alerts alerts.toml", SENT, messageKey);
  element = h("div", { class: "alerts-page" }, h("h1", {}, "Alerts"));

  /** Fetches at once the first time, and then no more often than every other second. */
  async refresh() {
    if (this.#started) this.#read();
    else await this.#fetch();
  }

  tick() {}

  /** @param {Address} address */
  look(address) {
    return address.page === "alerts";
  }

  recolour() {}

  close() {
    this.#read.stop();
  }

  async #fetch() {
    const [open, failed, muted, sent] = /** @type {[{configured: boolean, alerts: OpenAlert[]}, Messages, {mutes: ListedMute[]}, Messages]} */ (
      await Promise.all([get("/alerts"), get(`/alerts/messages?sent=false&limit=${this.#failed.limit}`), get("/mutes"), get(`/alerts/messages?sent=true&limit=${this.#sent.limit}`)])
    );
    this.#started = true;
    const sections = [this.#firing, this.#pending, this.#failed, this.#muted, this.#sent].map(({ element }) => element);
    render(open.configured ? sections : html`<div class="first">${SETUP}</div>`, this.element);
    const worst = open.alerts.toSorted((one, other) => WORST_FIRST.indexOf(one.severity) - WORST_FIRST.indexOf(other.severity));
    this.#firing.show(worst.filter(({ state }) => state === "firing"));
    this.#pending.show(worst.filter(({ state }) => state === "pending"));
    this.#failed.show(failed.messages, failed.total);
    this.#muted.show(muted.mutes.filter(({ until }) => until === null || until > Date.now() * 1000));
    this.#sent.show(sent.messages, sent.total);
  }

  /**
   * @template Row
   * @param {string} title
   * @param {string} none
   * @param {Column<Row>[]} columns
   * @param {(row: Row) => string} key
   */
  #section(title, none, columns, key) {
    return new Section(title, none, new Table(title, columns, key), this.#now);
  }

  /** @returns {Column<OpenAlert>[]} */
  #alertColumns() {
    return [
      { name: "Severity", tight: true, cell: ({ severity }) => verdictBadge(severity) },
      { name: "Finding", cell: ({ title }) => unquoted(title) },
      RUN,
      { name: "Status", cell: (alert) => alertLine(alert.run_id, alert, this.#now, { may: mayChange(alert) }) },
    ];
  }

  /** @param {ListedMute} mute */
  #unmute({ mute_id, owner }) {
    const lift = () => void tried(() => send("DELETE", `/mutes/${encodeURIComponent(mute_id)}`)).then(this.#now);
    return mayChange({ owner }) ? html`<button type="button" @click=${lift}>Unmute</button>` : "";
  }
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
  { name: "Sent", tight: true, cell: ({ sent }) => clock(sent ?? 0) },
  { name: "Destination", cell: ({ target }) => target },
  RUN,
  { name: "Message", cell: ({ title }) => unquoted(title) },
];

/** @type {Column<ListedMute>[]} */
const MUTED = [
  { name: "Muted", cell: muted },
  { name: "Rule", cell: ({ rule }) => rule ?? "all rules" },
  { name: "Until", tight: true, cell: ({ until }) => (until === null ? "forever" : clock(until)) },
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

/**
 * @param {string} run
 * @param {string} name
 */
function link(run, name) {
  return html`<a href=${format({ page: "run", run, view: wholeView() })}><bdi>${name}</bdi></a>`;
}

/** @param {string} title what was found, names in backticks */
function unquoted(title) {
  return title.replaceAll("`", "");
}

/** What a mute is of. @param {ListedMute} mute */
function muted({ run_id, name, project }) {
  if (run_id !== null) return link(run_id, name ?? "run");
  return project === null ? "all projects" : `project ${project}`;
}

/** @param {string} text */
function pre(text) {
  return html`<pre tabindex="0"><code>${text}</code></pre>`;
}

const SETUP = html`
  <p class="description">This server sends no alerts. It can send a message to a phone, a chat or a mailbox when a run diverges, hangs or dies.</p>
  <p>1. Install Apprise beside the server:</p>
  ${pre("pip install 'ampmon[server,alerts]'")}
  <p>2. Write a file alerts.toml with your destinations, for example a topic of the app ntfy:</p>
  ${pre(CONFIGURATION)}
  <p>3. Protect the file, send a test alert, and restart the server:</p>
  ${pre("chmod 600 alerts.toml\nampmon alerts test --alerts alerts.toml\nampmon serve --alerts alerts.toml")}
  <p><a href=${at("docs/alerts.html")}>Learn more about alerts</a></p>
`;
