// What the numbers of a summary are called and mean. The charts bring their own words.

export const DEFINITIONS = {
  scale: "What the loss is multiplied by now, so that small gradients are not lost in fp16.",
  updates: "scaler.update() calls after at least one scaler.step(). One optimizer step each, where it was not skipped.",
  skipped: "Updates in which any optimizer on any rank found an inf or a NaN and left the weights alone. Ranks never multiply it.",
  underflow:
    "Shares of gradient elements at the newest sample: below 2⁻¹⁴, which fp16 holds with fewer bits, and exactly zero, flushed by fp16 or zero all along. Parameters on fp16's grid only.",
  headroom: "Bits between the largest scaled gradient and 65 504, fp16's largest number. An upper bound: activation gradients overflow first.",
  records: "Records stored, of those that the training processes numbered. A hole in the numbers is a lost record.",
  sampled: "Updates whose gradients were looked at. The monitor spaces them so that its cost stays inside its budget, one in 128 at the rarest, and looks after each change of the scale.",
  overhead: "Share of training time that the monitor itself took on the training thread and on the device, as it measured.",
  parameters: "Parameters that the scaler's optimizers hold.",
  newest: "When the newest update was made, by the training machine's clock.",
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
  running: ["●", "Updates arrive."],
  finished: ["✓", "The training process ended and said so."],
  crashed: ["✕", "The process exited unexpectedly."],
  silent: ["◌", "No update for longer than usual, and the process has not said that it ended."],
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
    definition: "Whether 99 % of its elements or more are exactly fp16 numbers. If not, fp32 made them, and small ones say nothing about fp16.",
    section: "on-the-grid-or-not",
  },
  culprit: { definition: "How many optimizer steps were skipped with this parameter among those named as culprits.", section: "on-every-skip" },
};
