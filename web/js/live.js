// The one stream of news from the server, and whether the server is there at all. Knows nothing of what is shown.

import { Refused, get } from "./api.js";
import { at } from "./root.js";

const RETRY_MS = [500, 1000, 2000, 3000];

/**
 * @typedef {{run: string, version: number, step?: number | null}} Advance
 * @typedef {{state: "starting" | "live" | "lost" | "refused", since: number, why: string}} Connection
 */

export class Live {
  /** @type {Connection} */
  connection = { state: "starting", since: Date.now(), why: "" };
  /** @type {EventSource | null} */
  #source = null;
  #query = "";
  #failures = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /**
   * @param {{onAdvance: (advance: Advance) => void, onConnection: (connection: Connection) => void}} listener
   */
  constructor({ onAdvance, onConnection }) {
    this.onAdvance = onAdvance;
    this.onConnection = onConnection;
  }

  /**
   * Listens for news of `runs`, or of every run where it is empty.
   * @param {string[]} runs
   */
  follow(runs) {
    this.#query = runs.length ? `?runs=${runs.map(encodeURIComponent).join(",")}` : "";
    if (document.hidden) this.pause();
    else this.#open();
  }

  /** A call failed: if the server does not come back by itself, say so. */
  suspect() {
    if (this.connection.state !== "live") return;
    this.#open();
  }

  /** Hangs up while nobody looks: a browser has six connections to a server, for all its tabs together. */
  pause() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  /** Listens again after `pause`. */
  resume() {
    if (this.#source === null) this.#open();
  }

  #open() {
    this.pause();
    const source = new EventSource(at(`api/v1/live${this.#query}`));
    this.#source = source;
    source.addEventListener("open", () => this.#set("live", ""));
    source.addEventListener("advance", (event) => this.onAdvance(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      if (source === this.#source) this.#lost();
    });
  }

  #lost() {
    const source = this.#source;
    source?.close();
    // The stream does not say why it ended; an ordinary call does.
    get("/runs?limit=1").then(
      () => this.#retry(source),
      (error) => (error instanceof Refused ? this.#refused(error, source) : this.#retry(source)),
    );
  }

  /** @param {EventSource | null} source the stream that ended, if nothing has taken its place since */
  #retry(source) {
    if (source !== this.#source) return;
    this.#set("lost", "");
    const wait = RETRY_MS[Math.min(this.#failures, RETRY_MS.length - 1)];
    this.#failures += 1;
    this.#timer = setTimeout(() => this.#open(), wait);
  }

  /**
   * @param {Refused} error
   * @param {EventSource | null} source
   */
  #refused(error, source) {
    if (source !== this.#source) return;
    this.#set("refused", error.status === 401 ? "sign-in" : error.message);
    this.#timer = setTimeout(() => this.#open(), 5000);
  }

  /**
   * @param {Connection["state"]} state
   * @param {string} why
   */
  #set(state, why) {
    if (state === "live") this.#failures = 0;
    const since = state === this.connection.state ? this.connection.since : Date.now();
    this.connection = { state, since, why };
    this.onConnection(this.connection);
  }
}
