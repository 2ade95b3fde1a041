// The page of alerts: what fires, which messages failed, what is muted and what was sent, in all runs that the reader sees.

import { format, wholeView } from "./address.js";
import { AlertLine, attempt, clock } from "./alerts.js";
import { get, send } from "./api.js";
import { h, say } from "./dom.js";
import { count } from "./format.js";
import { paced } from "./pace.js";
import { at } from "./root.js";
import { Table } from "./table.js";
import { toast } from "./toast.js";
import { setVerdict, verdict } from "./verdict.js";
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
  #count = h("span", { class: "more" });
  #none;
  #more;

  /**
   * @param {string} title
   * @param {string} none said where there are no rows; without it, nothing is shown then
   * @param {Table<Row>} table
   * @param {() => void} onMore called once it may have more rows
   */
  constructor(title, none, table, onMore) {
    this.table = table;
    this.#none = h("p", { class: "caption" }, none);
    this.#more = h("button", { type: "button", onclick: () => this.#grow(onMore) }, "Show more");
    this.element = h("section", { class: "ledger", "data-section": title, hidden: true }, h("header", {}, h("h2", {}, title), this.#count), this.#none, table.element, this.#more);
  }

  /**
   * @param {Row[]} rows
   * @param {number} total
   */
  show(rows, total = rows.length) {
    const shown = rows.slice(0, this.limit);
    this.element.hidden = total === 0 && this.#none.textContent === "";
    this.#none.hidden = total > 0;
    this.table.element.hidden = total === 0;
    this.#more.hidden = shown.length === total || this.limit === ROWS_MAX;
    const all = shown.length === total;
    say(this.#count, all && total === 0 ? "" : all ? count(total) : `${count(shown.length)} of ${count(total)}`);
    this.table.update(shown);
  }

  /** @param {() => void} onMore */
  #grow(onMore) {
    this.limit = Math.min(MORE * this.limit, ROWS_MAX);
    onMore();
  }
}

export class AlertsPage {
  title = "Alerts";
  /** @type {string[]} */
  follows = [];
  #started = false;
  #read = paced(() => this.#fetch().catch(() => {}), READ_MS);
  #now = () => void this.#fetch().catch(() => {});
  /** @type {Map<string, AlertLine>} */
  #lines = new Map();
  #firing = this.#section("Firing now", "No alert is firing.", this.#alertColumns(), alertKey);
  #pending = this.#section("Pending", "", this.#alertColumns(), alertKey);
  #failed = this.#section("Failed or waiting", "Every message was delivered.", FAILED, messageKey);
  #muted = this.#section("Muted", "Nothing is muted.", [...MUTED, { name: "Action", cell: (mute) => this.#unmute(mute) }], ({ mute_id }) => mute_id);
  #sent = this.#section("Sent in the last 7 days", "No message was sent. Test your destinations: ampmon alerts test --alerts alerts.toml", SENT, messageKey);
  #sections = h("div", { hidden: true }, ...[this.#firing, this.#pending, this.#failed, this.#muted, this.#sent].map(({ element }) => element));
  #setup = h("div", { class: "first", hidden: true }, ...setup());
  element = h("div", { class: "alerts-page" }, h("h1", {}, "Alerts"), this.#setup, this.#sections);

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
    const keys = new Set(open.alerts.map(alertKey));
    for (const key of this.#lines.keys()) if (!keys.has(key)) this.#lines.delete(key);
    this.#setup.hidden = open.configured;
    this.#sections.hidden = !open.configured;
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
      { name: "Severity", tight: true, cell: ({ severity }) => badge(severity) },
      { name: "Finding", cell: ({ title }) => unquoted(title) },
      RUN,
      { name: "Status", cell: (alert) => this.#line(alert) },
    ];
  }

  /** @param {OpenAlert} alert */
  #line(alert) {
    const key = alertKey(alert);
    const line = this.#lines.get(key) ?? new AlertLine(alert.run_id, this.#now);
    this.#lines.set(key, line);
    line.show(alert, "", mayChange(alert));
    return line.element;
  }

  /** @param {ListedMute} mute */
  #unmute({ mute_id, owner }) {
    return mayChange({ owner }) ? h("button", { type: "button", onclick: () => void this.#lift(mute_id) }, "Unmute") : "";
  }

  /** @param {string} mute */
  async #lift(mute) {
    try {
      await send("DELETE", `/mutes/${encodeURIComponent(mute)}`);
    } catch (error) {
      toast(`Action failed: ${error instanceof Error ? error.message : error}`);
    }
    this.#now();
  }
}

/** @type {Column<{run_id: string, name: string, project: string}>} */
const RUN = { name: "Run", cell: ({ run_id, name, project }) => h("span", {}, link(run_id, name), " in ", h("bdi", {}, project)) };

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

/** @param {OpenAlert["severity"]} severity */
function badge(severity) {
  const made = verdict();
  setVerdict(made, severity);
  return made;
}

/**
 * @param {string} run
 * @param {string} name
 */
function link(run, name) {
  return h("a", { href: format({ page: "run", run, view: wholeView() }) }, h("bdi", {}, name));
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

function setup() {
  const code = (/** @type {string} */ text) => h("pre", { tabindex: "0" }, h("code", {}, text));
  return [
    h("p", { class: "description" }, "This server sends no alerts. It can send a message to a phone, a chat or a mailbox when a run diverges, hangs or dies."),
    h("p", {}, "1. Install Apprise beside the server:"),
    code("pip install 'ampmon[server,alerts]'"),
    h("p", {}, "2. Write a file alerts.toml with your destinations, for example a topic of the app ntfy:"),
    code(CONFIGURATION),
    h("p", {}, "3. Protect the file, send a test alert, and restart the server:"),
    code("chmod 600 alerts.toml\nampmon alerts test --alerts alerts.toml\nampmon serve --alerts alerts.toml"),
    h("p", {}, h("a", { href: at("docs/alerts.html") }, "Learn more about alerts")),
  ];
}
