// The words and shapes of a run's status and of severities, and what the server declares in the page: the names of a
// run's numbers, the definitions of terms, its charts, and the statistics of a parameter's gradient.

export const STATUS = /** @type {const} */ ({
  running: ["●", "The server is receiving steps."],
  finished: ["✓", "The training process ended normally."],
  crashed: ["✕", "The process exited unexpectedly."],
  silent: ["◌", "No step for longer than usual, and the process has not reported its end."],
});

export const SEVERITY = { critical: "■", warning: "▲", notice: "○", healthy: "✓" };

/** @type {Declared} */
const DECLARED = JSON.parse(document.getElementById("declared")?.textContent || '{"charts": {}, "statistics": {}, "terms": {}, "numbers": {}}');

export const { statistics: STATISTICS, terms: TERMS, numbers: NUMBERS } = DECLARED;

/** With the chart of several runs that has no module of its own. @type {Record<string, DeclaredChart>} */
const CHARTS = { ...DECLARED.charts, logged: { tab: null, choices: ["name", "smooth", "y", "baseline"], sampled: false } };

/** @param {string} name @returns {DeclaredChart} */
export function declaredOf(name) {
  return CHARTS[name] ?? { tab: null, choices: [], sampled: false };
}

/** The names of a tab's charts, from top to bottom. @param {string} tab */
export function chartsIn(tab) {
  return Object.keys(CHARTS).filter((name) => CHARTS[name]?.tab === tab);
}
