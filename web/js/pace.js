// Work that is asked for more often than it should be done, and not at all while nobody sees the page.

/**
 * Makes a trigger for `work`. It runs at most once in `interval` ms, or at once on `now()`. Runs never overlap, and a run
 * always follows the last call. While the page is hidden, a run waits until it is visible.
 * @param {() => Promise<void>} work must not reject
 * @param {number} interval
 */
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

/** Waits until the page is seen, if it is not. @returns {Promise<void>} */
async function seen() {
  const page = globalThis.document;
  while (page?.hidden) await new Promise((resolve) => page.addEventListener("visibilitychange", resolve, { once: true }));
}
