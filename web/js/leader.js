// Which of a browser's tabs does what one is enough for: it holds a lock, which the browser gives to the next one the
// moment that tab closes, crashes, or leaves. Where there are no locks every tab leads, for itself.

export class Leader {
  /** @type {AbortController | null} while it leads, or waits to */
  #candidacy = null;
  /** @type {() => void} */
  #release = () => {};

  /**
   * @param {string} name of what is led
   * @param {{onLead: () => void, onLost: () => void}} listener `onLost`: another took the lead away
   */
  constructor(name, { onLead, onLost }) {
    this.name = name;
    this.onLead = onLead;
    this.onLost = onLost;
    this.leads = false;
  }

  /** Leads as soon as nobody else does. */
  join() {
    if (this.#candidacy === null) this.#stand({});
  }

  /** Leads now, in place of a tab that has fallen silent. */
  seize() {
    this.leave();
    this.#stand({ steal: true });
  }

  /** Lets another lead. */
  leave() {
    this.#candidacy?.abort();
    this.#candidacy = null;
    this.leads = false;
    this.#release();
  }

  /** @param {{steal?: boolean}} how */
  #stand(how) {
    const candidacy = new AbortController();
    this.#candidacy = candidacy;
    if (!("locks" in navigator)) return this.#lead();
    // A lock that is seized is not waited for.
    const options = how.steal ? how : { signal: candidacy.signal };
    navigator.locks.request(this.name, options, () => (candidacy.signal.aborted ? null : this.#lead())).catch((error) => {
      if (candidacy.signal.aborted) return;
      // A page without an origin of its own has no locks.
      if (error.name !== "AbortError") return void this.#lead();
      this.leave();
      this.onLost();
    });
  }

  /** @returns {Promise<void>} as long as it leads */
  #lead() {
    this.leads = true;
    const led = new Promise((/** @type {(value: void) => void} */ resolve) => {
      this.#release = resolve;
    });
    this.onLead();
    return led;
  }
}
