// Names and definitions of a summary's numbers. Charts have their own.

/** @typedef {{definition: string, section: string}} Definition */

/** A run's numbers. `section` is the anchor on the page of measures. @satisfies {Record<string, Definition>} */
export const NUMBERS = {
  scale: { definition: "What the loss is multiplied by now, so that small gradients are not lost in fp16.", section: "at-every-update" },
  skipped: {
    definition: "Steps in which any optimizer on any rank found an inf or a NaN and left the weights alone. A step counts once for all ranks.",
    section: "at-every-update",
  },
  underflow: {
    definition:
      "Shares of gradient elements at the newest sample: below 2⁻¹⁴, which fp16 holds with fewer bits, and exactly zero, flushed by fp16 or zero all along. fp16-representable parameters only.",
    section: "the-classes",
  },
  headroom: {
    definition: "Bits between the largest scaled gradient and 65 504, fp16's largest number. An upper bound: activation gradients overflow first.",
    section: "derived",
  },
  records: {
    definition: "Records stored, of those that the training processes numbered. A hole in the numbers is a lost record.",
    section: "about-ampmon-itself",
  },
  sampled: {
    definition:
      "Steps whose gradients were measured. The monitor spaces them to keep its overhead inside the budget. It samples at least one step in 128, and after each change of the loss scale.",
    section: "when-sampled",
  },
  overhead: {
    definition: "Share of training time that the monitor itself took on the training thread and on the device, as it measured.",
    section: "about-ampmon-itself",
  },
  newest: { definition: "When the newest step was made, by the training machine's clock.", section: "at-every-update" },
  ranks: { definition: "Processes that trained together, and how often they were started.", section: "about-ampmon-itself" },
};

export const STATUS = /** @type {const} */ ({
  running: ["●", "Steps arrive."],
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

export const LINES = ["import ampmon", "# in the place of torch.amp.GradScaler()", "scaler = ampmon.GradScaler()"];

/** A parameter's numbers at a sampled update. @satisfies {Record<string, Definition>} */
export const STATISTICS = {
  parameter: { definition: "By its name in the model. Sorted by it, parameters stand in the model's order.", section: "when-sampled" },
  subnormal: {
    definition: "Share of its scaled gradient's elements from 2⁻²⁴ to 2⁻¹⁴: fp16 holds them with fewer bits the smaller they are.",
    section: "the-classes",
  },
  zero: { definition: "Share of its elements that are exactly zero: flushed by fp16, or zero all along.", section: "the-classes" },
  lost: { definition: "How many of its elements overflowed to inf, and how many are NaN.", section: "the-classes" },
  headroom: { definition: "Bits between its largest scaled element and 65 504, fp16's largest number.", section: "derived" },
  norm: { definition: "The 2-norm of its unscaled gradient: it does not move with the loss scale.", section: "derived" },
  on_grid: {
    definition: "Whether fp16 holds at least 99 % of its elements exactly. If not, they were computed in fp32, and small ones say nothing about fp16.",
    section: "on-the-grid-or-not",
  },
  culprit: { definition: "How many optimizer steps were skipped with this parameter among those named as culprits.", section: "on-every-skip" },
};
