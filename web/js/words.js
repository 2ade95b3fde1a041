// What the numbers of a summary are called and mean. The charts bring their own words.

export const DEFINITIONS = {
  scale: "What the loss is multiplied by now, so that small gradients are not lost in fp16.",
  updates: "Optimizer steps: scaler.update() calls after at least one scaler.step(). A skipped step leaves the weights alone.",
  skipped: "Steps in which any optimizer on any rank found an inf or a NaN and left the weights alone. A step counts once for all ranks.",
  underflow:
    "Shares of gradient elements at the newest sample: below 2⁻¹⁴, which fp16 holds with fewer bits, and exactly zero, flushed by fp16 or zero all along. fp16-representable parameters only.",
  headroom: "Bits between the largest scaled gradient and 65 504, fp16's largest number. An upper bound: activation gradients overflow first.",
  records: "Records stored, of those that the training processes numbered. A hole in the numbers is a lost record.",
  sampled: "Steps whose gradients were measured. The monitor spaces them to keep its overhead inside the budget. It samples at least one step in 128, and after each change of the loss scale.",
  overhead: "Share of training time that the monitor itself took on the training thread and on the device, as it measured.",
  parameters: "Parameters that the scaler's optimizers hold.",
  newest: "When the newest step was made, by the training machine's clock.",
  ranks: "Processes that trained together, and how often they were started.",
};

/** Where the page on what is measured has more about each. @type {Record<keyof typeof DEFINITIONS, string>} */
export const SECTIONS = {
  scale: "at-every-update",
  updates: "at-every-update",
  skipped: "at-every-update",
  underflow: "the-classes",
  headroom: "derived",
  records: "about-ampmon-itself",
  sampled: "when-sampled",
  overhead: "about-ampmon-itself",
  parameters: "on-the-grid-or-not",
  newest: "at-every-update",
  ranks: "about-ampmon-itself",
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

/**
 * What is told of a parameter at a sampled update, and where the page on what is measured has more.
 * @satisfies {Record<string, {definition: string, section: string}>}
 */
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
