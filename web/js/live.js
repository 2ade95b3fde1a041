// Live events from the server, and the state of the connection. The leader of a browser's tabs reads one stream for all
// of them and passes its events on. Hidden tabs take no part.

import { call, Refused, SignedOut, urlOf } from "./server.js";

const OPEN_MS = 15_000;
// The server sends something every 15 s. After this long without data, the connection is dead.
const SILENCE_MS = 40_000;
const RETRY_MS = [500, 1000, 2000, 3000];
const REFUSED_MS = 5000;
const BEAT_MS = 1000;
// A leader that is silent for this long hangs, and another tab takes its place.
const SILENT_MS = 10_000;
// Tabs that want events within this time share one request.
const GATHER_MS = 30;
// For more runs than this, the stream is of all runs.
const NAMED_MAX = 150;

/** Listen to the stream at a path under /api/v1. Return a function that closes it. `onEnd` is called once, unless the
 * caller closed the stream.
 * @param {string} path
 * @param {{onOpen: () => void, onEvents: (events: ServerEvent[]) => void, onEnd: (why: Refused | SignedOut | null) => void}} listener */
export function listen(path, { onOpen, onEvents, onEnd }) {
  const controller = new AbortController();
  let closed = false;
  let silence = setTimeout(() => controller.abort(), OPEN_MS);

  async function read() {
    const response = await call(path, { signal: controller.signal });
    onOpen();
    const parse = reader();
    const parts = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await parts?.read(); part && !part.done; part = await parts?.read()) {
      clearTimeout(silence);
      silence = setTimeout(() => controller.abort(), SILENCE_MS);
      const events = parse(part.value);
      if (events.length && !closed) onEvents(events);
    }
  }

  read()
    .then(() => null, (error) => (error instanceof Refused || error instanceof SignedOut ? error : null))
    .then((why) => {
      clearTimeout(silence);
      if (!closed) onEnd(why);
    });
  return () => {
    closed = true;
    controller.abort();
  };
}

/** Create a parser: a function that takes the next text of a stream and returns the events it completes. */
export function reader() {
  let rest = "";
  return (/** @type {string} */ text) => {
    const blocks = (rest + text).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop() ?? "";
    return blocks.map(event).filter(({ data }) => data !== "");
  };
}

/** @param {string} block @returns {ServerEvent} */
function event(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    const [field, value = ""] = line.split(/: ?(.*)/s);
    if (field === "event") name = value;
    if (field === "data") data.push(value);
  }
  return { name, data: data.join("\n") };
}

/** Elects one leader among a browser's tabs. The leader holds a lock, which the browser passes on at once when the tab
 * closes or crashes. If there are no locks, every tab leads itself. */
class Leader {
  leads = false;
  /** Of a tab that leads, or waits to. @type {AbortController | null} */
  #candidacy = null;

  /** `onLost`: another tab seized the lead.
   * @param {string} name of the lock @param {{onLead: () => void, onLost: () => void}} listener */
  constructor(name, { onLead, onLost }) {
    this.name = name;
    this.onLead = onLead;
    this.onLost = onLost;
  }

  /** Lead as soon as no other tab does. */
  join() {
    if (this.#candidacy === null) this.#requestLock(false);
  }

  /** Lead now, in place of a tab that has fallen silent. */
  seize() {
    this.leave();
    this.#requestLock(true);
  }

  /** Stop leading, or waiting to lead. */
  leave() {
    this.leads = false;
    this.#candidacy?.abort();
    this.#candidacy = null;
  }

  /** @param {boolean} steal */
  #requestLock(steal) {
    this.#candidacy = new AbortController();
    const { signal } = this.#candidacy;
    if (!("locks" in navigator)) return void this.#lead(signal);
    // A lock cannot be stolen with an abort signal, and need not be: a stolen lock is granted at once.
    const options = steal ? { steal } : { signal };
    navigator.locks.request(this.name, options, () => (signal.aborted ? null : this.#lead(signal))).catch((error) => {
      if (signal.aborted) return;
      // A page with an opaque origin, as in a sandboxed frame, has no locks.
      if (error.name !== "AbortError") return void this.#lead(signal);
      this.leave();
      this.onLost();
    });
  }

  /** @param {AbortSignal} signal @returns {Promise<unknown>} pending as long as this tab leads */
  #lead(signal) {
    this.leads = true;
    this.onLead();
    return new Promise((resolve) => signal.addEventListener("abort", resolve));
  }
}

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

  /** @param {TabMessage} word */
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

  /** @param {TabMessage} word */
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
