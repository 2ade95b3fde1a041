// What charts and statistics declare about themselves on the server, which puts it into the page.

/** @type {{charts: Record<string, DeclaredChart>, statistics: Record<string, DeclaredStatistic>}} */
const DECLARED = JSON.parse(document.getElementById("declared")?.textContent || '{"charts": {}, "statistics": {}}');

/** Charts of several runs, which have no module of their own. @type {Record<string, DeclaredChart>} */
const COMPARED = { logged: { tab: null, choices: ["name", "smooth", "y", "baseline"], sampled: false } };

const CHARTS = { ...DECLARED.charts, ...COMPARED };

/** The statistics of a parameter's gradient, by name. */
export const STATISTICS = DECLARED.statistics;

/** @param {string} name @returns {DeclaredChart} */
export function declaredOf(name) {
  return CHARTS[name] ?? { tab: null, choices: [], sampled: false };
}

/** The names of a tab's charts, from top to bottom. @param {string} tab */
export function chartsIn(tab) {
  return Object.keys(CHARTS).filter((name) => CHARTS[name]?.tab === tab);
}
