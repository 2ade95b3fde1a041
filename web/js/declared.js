// What the modules of the charts declare, as the server puts it into the page.

/** @typedef {{tab: string | null, choices: string[], sampled: boolean}} Declared */

/** Charts of several runs, which have no module of their own. @type {Record<string, Declared>} */
const COMPARED = { logged: { tab: null, choices: ["name", "smooth", "y", "baseline"], sampled: false } };

/** @type {Record<string, Declared>} */
const CHARTS = { ...JSON.parse(document.getElementById("charts")?.textContent || "{}"), ...COMPARED };

/** @param {string} name @returns {Declared} */
export function declaredOf(name) {
  return CHARTS[name] ?? { tab: null, choices: [], sampled: false };
}

/** The names of a tab's charts, from top to bottom. @param {string} tab */
export function chartsIn(tab) {
  return Object.keys(CHARTS).filter((name) => CHARTS[name]?.tab === tab);
}
