// Work that is asked for more often than it should be done. Pure but for the timers.

/**
 * A trigger for `work`: it runs at most once in `interval` ms, never twice at a time, and once more after the last call.
 * @param {() => Promise<void>} work must not reject
 * @param {number} interval
 */
export function paced(work, interval) {
  let running = false;
  let wanted = false;
  let stopped = false;
  let last = -Infinity;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  async function run() {
    timer = undefined;
    running = true;
    wanted = false;
    last = performance.now();
    try {
      await work();
    } finally {
      running = false;
    }
    if (wanted) trigger();
  }

  function trigger() {
    if (stopped) return;
    wanted = true;
    if (running || timer !== undefined) return;
    timer = setTimeout(run, Math.max(0, last + interval - performance.now()));
  }

  trigger.stop = () => {
    stopped = true;
    clearTimeout(timer);
  };
  return trigger;
}
