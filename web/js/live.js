// Live events from the server, and the state of the connection. The leader of a browser's tabs reads one stream for all
// of them and passes its events on. Hidden tabs take no part.

import { SignedOut } from "./api.js";
import { listen } from "./events.js";
import { Leader } from "./leader.js";
import { urlOf } from "./root.js";

/** A message between tabs.
 * @typedef {{kind: "wants", tab: string, runs: string[] | null} | {kind: "ask"} | {kind: "check"}
 * | {kind: "news", advances: Advance[]} | {kind: "beat", connection: Connection}} Word */

const RETRY_MS = [500, 1000, 2000, 3000];
const REFUSED_MS = 5000;
const BEAT_MS = 1000;
// A leader that is silent for this long hangs, and another tab takes its place.
const SILENT_MS = 10_000;
// Tabs that want events within this time share one request.
const GATHER_MS = 30;
// For more runs than this, the stream is of all runs.
const NAMED_MAX = 150;

export class Live {
  /** @type {Connection} */
  connection = { state: "starting", since: Date.now(), why: "" };
  #tab = crypto.randomUUID?.() ?? String(Math.random());
  /** The runs whose events this tab wants; [] means all runs, and null means no events. @type {string[] | null} */
  #runs = null;
  /** What the other tabs want, as far as known. @type {Map<string, string[]>} */
  #wants = new Map();
  /** The query of the stream; null while there is none. @type {string | null} */
  #asked = null;
  #closeStream = () => {};
  #failures = 0;
  #lastMessage = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #channel = channel();
  #leader = new Leader(urlOf("live"), { onLead: () => this.#lead(), onLost: () => this.#lost() });

  /** @param {{onAdvance: (advances: Advance[]) => void, onConnection: (connection: Connection) => void}} listener */
  constructor({ onAdvance, onConnection }) {
    this.onAdvance = onAdvance;
    this.onConnection = onConnection;
    this.#channel.onmessage = ({ data }) => this.#onMessage(data);
    setInterval(() => this.#beat(), BEAT_MS);
  }

  /** From now on, receive events of `runs`, or of all runs if it is empty. @param {string[]} runs */
  follow(runs) {
    this.#runs = runs;
    if (!document.hidden) this.resume();
  }

  /** Take no part while hidden: a browser has six connections to a server, for all its tabs together. */
  pause() {
    this.#send({ kind: "wants", tab: this.#tab, runs: null });
    this.#stop();
    this.#leader.leave();
  }

  /** Take part again, after `pause` or after the machine or the network may have been away. */
  resume() {
    if (this.#runs === null) return;
    this.#lastMessage = Date.now();
    this.#send({ kind: "wants", tab: this.#tab, runs: this.#runs });
    if (this.#leader.leads) this.#gather();
    else this.#leader.join();
  }

  /** Test the stream by opening it again, after a failed call, or if the machine or the network was away. */
  checkStream() {
    if (!this.#leader.leads) this.#send({ kind: "check" });
    else if (this.connection.state === "live") this.#open();
  }

  #lead() {
    this.#wants.clear();
    this.#send({ kind: "ask" });
    this.#open();
  }

  /** Another tab took the lead, because this one had fallen silent. */
  #lost() {
    this.#stop();
    this.resume();
  }

  #beat() {
    if (this.#leader.leads) this.#send({ kind: "beat", connection: this.connection });
    else if (this.#runs !== null && !document.hidden && this.connection.state !== "signed out") {
      if (Date.now() - this.#lastMessage > SILENT_MS) this.#leader.seize();
    }
  }

  /** @param {Word} word */
  #onMessage(word) {
    if (word.kind === "beat" || word.kind === "news") this.#lastMessage = Date.now();
    if (document.hidden) return;
    if (word.kind === "news") this.#notify(word.advances);
    else if (word.kind === "beat" && !this.#leader.leads) this.#set(word.connection);
    else if (word.kind === "ask") this.#send({ kind: "wants", tab: this.#tab, runs: this.#runs });
    else if (word.kind === "check" && this.#leader.leads) this.checkStream();
    else if (word.kind === "wants") this.#note(word);
  }

  /** @param {{tab: string, runs: string[] | null}} wants */
  #note({ tab, runs }) {
    if (runs === null) this.#wants.delete(tab);
    else this.#wants.set(tab, runs);
    if (!this.#leader.leads) return;
    this.#beat();
    this.#gather();
  }

  /** Open the stream again if the tabs now want other runs. */
  #gather() {
    if (this.#asked === null || this.#asked === this.#query) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#open(), GATHER_MS);
  }

  get #query() {
    const all = [...this.#wants.values(), ...(this.#runs === null ? [] : [this.#runs])];
    const runs = [...new Set(all.flat())].sort();
    if (all.some((one) => one.length === 0) || runs.length === 0 || runs.length > NAMED_MAX) return "";
    return `?runs=${runs.map(encodeURIComponent).join(",")}`;
  }

  #open() {
    this.#stop();
    this.#asked = this.#query;
    this.#closeStream = listen(`/live${this.#asked}`, {
      onOpen: () => this.#setState("live"),
      onEvents: (events) => this.#publish(events),
      onEnd: (why) => this.#ended(why),
    });
  }

  #stop() {
    clearTimeout(this.#timer);
    this.#closeStream();
    this.#asked = null;
  }

  /** @param {Refused | SignedOut | null} why */
  #ended(why) {
    this.#asked = null;
    if (why === null) {
      this.#setState("lost");
      const wait = RETRY_MS[Math.min(this.#failures, RETRY_MS.length - 1)];
      this.#failures += 1;
      this.#timer = setTimeout(() => this.#open(), wait);
      return;
    }
    // The server may accept another tab.
    this.#setState(why instanceof SignedOut ? "signed out" : "refused", why.message);
    this.#leader.leave();
    this.#timer = setTimeout(() => this.resume(), REFUSED_MS);
  }

  /** @param {ServerEvent[]} events */
  #publish(events) {
    const advances = events.filter(({ name }) => name === "advance").map(({ data }) => /** @type {Advance} */ (JSON.parse(data)));
    if (advances.length === 0) return;
    this.#send({ kind: "news", advances });
    this.#notify(advances);
  }

  /** @param {Advance[]} advances */
  #notify(advances) {
    const runs = this.#runs;
    if (runs && (runs.length === 0 || advances.some(({ run }) => runs.includes(run)))) this.onAdvance(advances);
  }

  /** @param {Connection["state"]} state @param {string} why */
  #setState(state, why = "") {
    if (state === "live") this.#failures = 0;
    this.#set({ state, why, since: state === this.connection.state ? this.connection.since : Date.now() });
    this.#beat();
  }

  /** @param {Connection} connection */
  #set(connection) {
    const same = connection.state === this.connection.state && connection.why === this.connection.why;
    this.connection = connection;
    if (!same) this.onConnection(connection);
  }

  /** @param {Word} word */
  #send(word) {
    this.#channel.postMessage(word);
  }
}

/** The channel to the other tabs. It does nothing if the browser lacks channels or locks. */
function channel() {
  return "BroadcastChannel" in window && "locks" in navigator
    ? new BroadcastChannel(urlOf("live"))
    : { onmessage: null, postMessage() {} };
}
