// The news from the server, and whether it is there at all: one stream for all tabs of a browser, read by the one that
// leads, which passes on what comes. A tab that nobody sees takes no part. Knows nothing of what is shown.

import { SignedOut } from "./api.js";
import { listen } from "./events.js";
import { Leader } from "./leader.js";
import { at } from "./root.js";

/** @import { Refused } from "./api.js" */
/** @import { ServerEvent } from "./events.js" */

/**
 * @typedef {{run: string, version: number, step?: number | null}} Advance
 * @typedef {{state: "starting" | "live" | "lost" | "refused" | "signed out", since: number, why: string}} Connection
 * @typedef {{kind: "wants", tab: string, runs: string[] | null}
 *   | {kind: "ask"}
 *   | {kind: "suspect"}
 *   | {kind: "news", advances: Advance[]}
 *   | {kind: "beat", connection: Connection}} Word what tabs say to one another
 */

const RETRY_MS = [500, 1000, 2000, 3000];
const REFUSED_MS = 5000;
const BEAT_MS = 1000;
// A tab that leads and has not said so for this long hangs: another takes its place.
const SILENT_MS = 10_000;
// Tabs that come at once are answered by one stream.
const GATHER_MS = 30;
// More than a stream can be asked for by name.
const NAMED_MAX = 150;

export class Live {
  /** @type {Connection} */
  connection = { state: "starting", since: Date.now(), why: "" };
  #tab = crypto.randomUUID?.() ?? String(Math.random());
  /** What this tab wants news of; none is all, and null is no news. @type {string[] | null} */
  #runs = null;
  /** What the others want, as far as this one knows. @type {Map<string, string[]>} */
  #wants = new Map();
  /** What the stream was asked for; null while there is none. @type {string | null} */
  #asked = null;
  #hangUp = () => {};
  #failures = 0;
  #heard = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #channel = channel();
  #leader = new Leader(at("live"), { onLead: () => this.#lead(), onLost: () => this.#lost() });

  /** @param {{onAdvance: (advances: Advance[]) => void, onConnection: (connection: Connection) => void}} listener */
  constructor({ onAdvance, onConnection }) {
    this.onAdvance = onAdvance;
    this.onConnection = onConnection;
    this.#channel.onmessage = ({ data }) => this.#hear(data);
    setInterval(() => this.#beat(), BEAT_MS);
  }

  /** Wants news of `runs`, or of every run where it is empty, from now on. @param {string[]} runs */
  follow(runs) {
    this.#runs = runs;
    if (!document.hidden) this.resume();
  }

  /** Takes no part while nobody looks: a browser has six connections to a server, for all its tabs together. */
  pause() {
    this.#say({ kind: "wants", tab: this.#tab, runs: null });
    this.#stop();
    this.#leader.leave();
  }

  /** Takes part, after `pause` or after a while in which the machine or the network may have been away. */
  resume() {
    if (this.#runs === null) return;
    this.#heard = Date.now();
    this.#say({ kind: "wants", tab: this.#tab, runs: this.#runs });
    if (this.#leader.leads) this.#gather();
    else this.#leader.join();
  }

  /** A call failed, or time has passed unseen: makes sure of the stream, which ends where the server does not answer. */
  suspect() {
    if (!this.#leader.leads) this.#say({ kind: "suspect" });
    else if (this.connection.state === "live") this.#open();
  }

  #lead() {
    this.#wants.clear();
    this.#say({ kind: "ask" });
    this.#open();
  }

  /** Another tab took the lead, for this one had fallen silent. */
  #lost() {
    this.#stop();
    this.resume();
  }

  #beat() {
    if (this.#leader.leads) this.#say({ kind: "beat", connection: this.connection });
    else if (this.#runs !== null && !document.hidden && this.connection.state !== "signed out") {
      if (Date.now() - this.#heard > SILENT_MS) this.#leader.seize();
    }
  }

  /** @param {Word} word */
  #hear(word) {
    if (word.kind === "beat" || word.kind === "news") this.#heard = Date.now();
    if (document.hidden) return;
    if (word.kind === "news") this.#tell(word.advances);
    else if (word.kind === "beat" && !this.#leader.leads) this.#set(word.connection);
    else if (word.kind === "ask") this.#say({ kind: "wants", tab: this.#tab, runs: this.#runs });
    else if (word.kind === "suspect" && this.#leader.leads) this.suspect();
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

  /** Asks for what all tabs want, if that is not what the stream is of. */
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
    this.#hangUp = listen(`/live${this.#asked}`, {
      onOpen: () => this.#become("live"),
      onEvents: (events) => this.#spread(events),
      onEnd: (why) => this.#ended(why),
    });
  }

  #stop() {
    clearTimeout(this.#timer);
    this.#hangUp();
    this.#asked = null;
  }

  /** @param {Refused | SignedOut | null} why */
  #ended(why) {
    this.#asked = null;
    if (why === null) {
      this.#become("lost");
      const wait = RETRY_MS[Math.min(this.#failures, RETRY_MS.length - 1)];
      this.#failures += 1;
      this.#timer = setTimeout(() => this.#open(), wait);
      return;
    }
    // Another tab may be let in where this one is not.
    this.#become(why instanceof SignedOut ? "signed out" : "refused", why.message);
    this.#leader.leave();
    this.#timer = setTimeout(() => this.resume(), REFUSED_MS);
  }

  /** @param {ServerEvent[]} events */
  #spread(events) {
    const advances = events.filter(({ name }) => name === "advance").map(({ data }) => /** @type {Advance} */ (JSON.parse(data)));
    if (advances.length === 0) return;
    this.#say({ kind: "news", advances });
    this.#tell(advances);
  }

  /** @param {Advance[]} advances */
  #tell(advances) {
    const runs = this.#runs;
    if (runs && (runs.length === 0 || advances.some(({ run }) => runs.includes(run)))) this.onAdvance(advances);
  }

  /** @param {Connection["state"]} state @param {string} why */
  #become(state, why = "") {
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
  #say(word) {
    this.#channel.postMessage(word);
  }
}

/** To the other tabs; to nobody where the browser has no way. */
function channel() {
  return "BroadcastChannel" in window && "locks" in navigator
    ? new BroadcastChannel(at("live"))
    : { onmessage: null, postMessage() {} };
}
