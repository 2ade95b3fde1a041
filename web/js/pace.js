// Limits how often work runs, and pauses it while the page is hidden.

/** Make a trigger for `work`, which must not reject. It runs at most once in `interval` ms, or at once on `now()`. Runs
 * never overlap, and one always follows the last call. While the page is hidden, a run waits.
 * @param {() => Promise<void>} work @param {number} interval */
export function paced(work, interval) {
  let running = false;
  let wanted = false;
  let urgent = false;
  let stopped = false;
  let last = -Infinity;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  async function run() {
    timer = undefined;
    running = true;
    await seen();
    wanted = urgent = false;
    last = performance.now();
    try {
      if (!stopped) await work();
    } finally {
      running = false;
    }
    if (wanted) trigger();
  }

  function trigger() {
    if (stopped) return;
    wanted = true;
    if (running || timer !== undefined) return;
    timer = setTimeout(run, urgent ? 0 : Math.max(0, last + interval - performance.now()));
  }

  trigger.now = () => {
    urgent = true;
    clearTimeout(timer);
    timer = undefined;
    trigger();
  };
  trigger.stop = () => {
    stopped = true;
    clearTimeout(timer);
  };
  return trigger;
}

/** Wait until the page is visible. @returns {Promise<void>} */
async function seen() {
  const page = globalThis.document;
  while (page?.hidden) await new Promise((resolve) => page.addEventListener("visibilitychange", resolve, { once: true }));
}
