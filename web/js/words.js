// Names and definitions of a summary's numbers, and what charts and statistics declare about themselves on the server.

/** A run's numbers. `section` is the anchor on the page of measures. @satisfies {Record<string, Definition>} */
export const NUMBERS = {
  scale: { definition: "The current factor on the loss. It keeps small gradients from being lost in fp16.", section: "at-every-update" },
  skipped: {
    definition: "Steps in which an optimizer on any rank found inf or NaN and did not change its weights. A step counts once, not once per rank.",
    section: "at-every-update",
  },
  underflow: {
    definition:
      "Shares of gradient elements in the newest sample. Subnormal: below 2⁻¹⁴, where fp16 has fewer bits. Zero: flushed by fp16, or zero in any format. fp16-representable parameters only.",
    section: "the-classes",
  },
  headroom: {
    definition: "Bits between the largest scaled gradient and 65 504, fp16's largest number. An upper bound: activation gradients overflow first.",
    section: "derived",
  },
  records: {
    definition: "Records stored, out of those that the training processes numbered. A gap in the numbers is a lost record.",
    section: "about-ampmon-itself",
  },
  sampled: {
    definition:
      "Steps whose gradients were measured. The monitor spaces them to keep its overhead inside the budget. It samples at least one step in 128, and after each change of the loss scale.",
    section: "when-sampled",
  },
  overhead: {
    definition: "Share of training time that monitoring takes on the training thread and on the device, as the monitor measures it.",
    section: "about-ampmon-itself",
  },
  newest: { definition: "Time of the newest step, by the training machine's clock.", section: "at-every-update" },
  ranks: { definition: "Processes that train together, and how many times they were started.", section: "about-ampmon-itself" },
};

export const STATUS = /** @type {const} */ ({
  running: ["●", "The server is receiving steps."],
  finished: ["✓", "The training process ended normally."],
  crashed: ["✕", "The process exited unexpectedly."],
  silent: ["◌", "No step for longer than usual, and the process has not reported its end."],
});

/** @type {Record<"critical" | "warning" | "notice" | "healthy", [shape: string, word: string]>} */
export const SEVERITY = {
  critical: ["■", "critical"],
  warning: ["▲", "warning"],
  notice: ["○", "notice"],
  healthy: ["✓", "healthy"],
};

export const LINES = ["import ampmon", "# instead of torch.amp.GradScaler()", "scaler = ampmon.GradScaler()"];

/** What the tables say of a parameter beside its statistics. @satisfies {Record<string, Definition>} */
export const PARAMETERS = {
  parameter: { definition: "The parameter's name in the model. Sorting by this column uses the model's order.", section: "when-sampled" },
  lost: { definition: "How many of its elements overflowed to inf, and how many are NaN.", section: "the-classes" },
  culprit: { definition: "Number of skipped optimizer steps in which this parameter is named as a culprit: its gradient held inf or NaN.", section: "on-every-skip" },
};

/** What a table says of a statistic whose cells differ from its values. @type {Record<string, string>} */
export const CELL_DEFINITIONS = {
  subnormal: "Share of its scaled gradient's elements from 2⁻²⁴ to 2⁻¹⁴: the smaller they are, the fewer bits fp16 has for them.",
  on_grid: "Whether fp16 holds at least 99 % of its elements exactly. If not, its gradient was computed in fp32, so its small elements do not show underflow in fp16.",
};

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
