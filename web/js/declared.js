// What charts and statistics declare about themselves on the server, which puts it into the page.

/** @typedef {{tab: string | null, choices: string[], sampled: boolean}} Chart */
/** @typedef {{title: string, definition: string, section: string, unit: "share" | "magnitude" | "headroom"}} Statistic */

/** @type {{charts: Record<string, Chart>, statistics: Record<string, Statistic>}} */
const DECLARED = JSON.parse(document.getElementById("declared")?.textContent || '{"charts": {}, "statistics": {}}');

/** Charts of several runs, which have no module of their own. @type {Record<string, Chart>} */
const COMPARED = { logged: { tab: null, choices: ["name", "smooth", "y", "baseline"], sampled: false } };

const CHARTS = { ...DECLARED.charts, ...COMPARED };

/** The statistics of a parameter's gradient, by name. */
export const STATISTICS = DECLARED.statistics;

/** @param {string} name @returns {Chart} */
export function declaredOf(name) {
  return CHARTS[name] ?? { tab: null, choices: [], sampled: false };
}

/** The names of a tab's charts, from top to bottom. @param {string} tab */
export function chartsIn(tab) {
  return Object.keys(CHARTS).filter((name) => CHARTS[name]?.tab === tab);
}
