// Elects one leader among a browser's tabs. The leader holds a lock, which the browser passes on at once when the tab
// closes or crashes. If there are no locks, every tab leads itself.

export class Leader {
  /** @type {AbortController | null} while it leads, or waits to */
  #candidacy = null;
  /** @type {() => void} */
  #release = () => {};

  /** `onLost`: another tab seized the lead.
   * @param {string} name of the lock @param {{onLead: () => void, onLost: () => void}} listener */
  constructor(name, { onLead, onLost }) {
    this.name = name;
    this.onLead = onLead;
    this.onLost = onLost;
    this.leads = false;
  }

  /** Lead as soon as no other tab does. */
  join() {
    if (this.#candidacy === null) this.#requestLock({});
  }

  /** Lead now, in place of a tab that has fallen silent. */
  seize() {
    this.leave();
    this.#requestLock({ steal: true });
  }

  /** Stop leading, or waiting to lead. */
  leave() {
    this.#candidacy?.abort();
    this.#candidacy = null;
    this.leads = false;
    this.#release();
  }

  /** @param {{steal?: boolean}} how */
  #requestLock(how) {
    const candidacy = new AbortController();
    this.#candidacy = candidacy;
    if (!("locks" in navigator)) return this.#lead();
    // A lock cannot be stolen with an abort signal, and need not be: a stolen lock is granted at once.
    const options = how.steal ? how : { signal: candidacy.signal };
    navigator.locks.request(this.name, options, () => (candidacy.signal.aborted ? null : this.#lead())).catch((error) => {
      if (candidacy.signal.aborted) return;
      // A page with an opaque origin, as in a sandboxed frame, has no locks.
      if (error.name !== "AbortError") return void this.#lead();
      this.leave();
      this.onLost();
    });
  }

  /** @returns {Promise<void>} pending as long as this tab leads */
  #lead() {
    this.leads = true;
    const led = new Promise((/** @type {(value: void) => void} */ resolve) => {
      this.#release = resolve;
    });
    this.onLead();
    return led;
  }
}
