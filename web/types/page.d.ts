/** The types that the page's modules share, and those of the server's responses. Development only. */

import type { Command } from "../js/keyboard.js";
import type { Advance } from "../js/live.js";

export interface View {
  /** The step, the time, or the user's step from ampmon.log. */
  x: "step" | "time" | "user";
  /** The first x shown and the one after the last: steps or microseconds since the epoch. Null is the run's own end. */
  start: number | null;
  stop: number | null;
  stream: string | null;
  /** The only rank shown; null shows all. */
  rank: string | null;
  /** The parameter shown in detail. */
  parameter: string | null;
  /** The number of newest updates to follow; null shows `start` to `stop`. */
  follow: number | null;
  /** The marked x of the axis: a step, such as a skip's, or a time in microseconds. */
  at: number | null;
  /** The reader's choices for charts, by name. They become query parameters of the charts' requests. */
  choices: Record<string, string>;
}

export type Address =
  | { page: "list"; filters: Record<string, string> }
  | { page: "run"; run: string; view: View }
  | { page: "compare"; runs: string[]; view: View }
  | { page: "alerts" }
  | { page: "nothing" };

/** The content below the page's bar. */
export interface Page {
  element: HTMLElement;
  title: string;
  /** The runs whose live updates it needs; an empty list means all. */
  follows: string[];
  /** Fetches changes. Rejects if the server does not answer. */
  refresh(): Promise<void>;
  /** Handles advances of any run from the live stream. */
  takeEvents?(advances: Advance[]): void;
  /** Called each second, to update ages. */
  tick?(): void;
  /** Shows another address of the same page. Returns false if it belongs to another page. */
  look(address: Address): boolean;
  recolour?(): void;
  /** Runs a key's command. Returns false if this page has no such command. */
  act?(command: Command): boolean;
  close?(): void;
}

/** The height in a chart, or the row of a heatmap, of a click. */
export interface Point {
  y: number | string;
}

export interface Range {
  start: number;
  stop: number;
}

export type Status = "running" | "finished" | "crashed" | "silent";

/** A run's summary, with the details that only its own page gets. */
export interface Detail extends Summary {
  identity: { config: Record<string, unknown> };
  /** Null if the server sends no alerts. */
  alerts: Alert[] | null;
}

/** A number that JSON cannot hold is null, with its kind beside it. */
export type Kind = "nan" | "inf" | "-inf" | null;

export interface Stream {
  stream: string;
  rank: number;
  scaler: string;
  layout: string;
}

/** The signed-in user. */
export interface Me {
  owner: string | null;
  scopes: string[];
  projects: string[] | null;
  signed_in_elsewhere: boolean;
}

/** Times are microseconds since the epoch, shares are 0..1, and null means not known yet. */
export interface Summary {
  run_id: string;
  project: string;
  name: string;
  owner: string;
  tags: string[];
  archived: boolean;
  status: Status;
  started: number;
  elapsed: number | null;
  updates: number;
  skipped: number;
  effective_updates: number;
  skip_rate: number | null;
  scale: number | null;
  scale_kind: Kind;
  zero_fraction: number | null;
  subnormal_fraction: number | null;
  zero_fraction_error: number | null;
  subnormal_fraction_error: number | null;
  headroom_bits: number | null;
  headroom_bits_kind: Kind;
  records: number;
  lost_records: number;
  disabled: boolean;
  overhead: number | null;
  /** Updates between samples, the budget as a share of training time, and whether even the rarest samples exceed it. */
  sampling_interval: number | null;
  budget: number | null;
  over_budget: boolean;
  ranks: number;
  attempts: number;
  /** The worst finding in words, or "healthy"; null if the run has not been judged. */
  verdict: string | null;
  severity: Severity | null;
  /** The number of firing alerts that nobody has acknowledged. */
  firing: number;
  version: number;
  last_step: number | null;
  last_time: number | null;
  sampled_updates: number;
  parameters: number;
  exact: boolean | null;
  streams: Stream[];
}

export interface Culprit {
  parameter: string;
  inf: number | null;
  nan: number | null;
}

export interface Skip {
  step: number;
  time: number;
  rank: number;
  stream: string;
  scaler: string;
  attempt: number;
  optimizer: string;
  path: string;
  cause: string;
  scale: number | null;
  scale_kind: Kind;
  scale_after: number | null;
  scale_after_kind: Kind;
  culprits: Culprit[];
  culprit_order: "learned" | "assumed";
  culprit_parameters: number;
  origin: "input" | "forward" | "loss" | "backward" | null;
  origin_module: string | null;
  loss: "finite" | "overflowed" | "not_finite" | null;
}

/** A skip of one optimizer at one step, and the ranks that skipped. */
export interface SharedSkip extends Skip {
  ranks_words: string;
}

export interface HappenedEvent {
  time: number;
  kind: string;
  rank: number;
  stream: string;
  scaler: string;
  attempt: number;
  seq: number;
  step: number | null;
  detail: Record<string, unknown>;
}

export interface ParameterRow {
  name: string;
  shape: number[];
  dtype: string;
  numel: number;
  looked: number;
  sampled: boolean;
  zeros: number;
  below_grid: number;
  subnormal: number;
  normal: number;
  inf: number;
  nan: number;
  zero_fraction: number | null;
  zero_fraction_error: number | null;
  below_grid_fraction: number | null;
  below_grid_fraction_error: number | null;
  subnormal_fraction: number | null;
  subnormal_fraction_error: number | null;
  on_grid: boolean;
  on_grid_fraction: number | null;
  headroom_bits: number | null;
  headroom_bits_kind: Kind;
  norm: number | null;
  norm_kind: Kind;
  /** The statistics without a field here, and the kinds of those that are infinite. */
  statistics: Record<string, number | null>;
  statistics_kinds: Record<string, Kind>;
}

/** A logged name on one stream. */
export interface LoggedName {
  name: string;
  user_steps: number;
}

/** A page of the parameters of one sampled update, the total number of parameters, and how many the search found. */
export interface Sampled {
  step: number;
  total: number;
  found: number;
  on_grid: number;
  overflowed: number;
  sampled: boolean;
  parameters: ParameterRow[];
}

/** A reader's choice for a chart: a query parameter of its request, and its values, each with a label. Without options,
 *  any text. */
export interface Choice {
  name: string;
  label: string;
  chosen: string;
  options: [string, string][];
}

export interface Meta {
  title: string;
  caption?: string;
  empty?: string;
  /** Whether the chart never has data for this run, so the page leaves it out. */
  absent?: boolean;
  definitions?: Record<string, string>;
  choices?: Choice[];
  /** The choice that a click on each row makes, from top to bottom: its name and value. */
  opens?: [string, string][];
  /** The time zone of its times in minutes east of UTC. Without it they are in UTC. */
  zone?: number;
  /** A choice between whole numbers. */
  slider?: Choosable;
  /** The range of a number format, by exponents of the scaled gradient, and the counts of elements. */
  window?: FormatWindow;
  /** The chart's conclusion in words. */
  sentence?: string;
  /** How the choice compares with the run's recommendation, and the code of an alternative. */
  standing?: string;
  code?: string;
  /** The simulated policy; null marks a number that it does not have. */
  form?: { prefix: string; policies: string[]; policy: string; numbers: Record<string, number | null> };
}

export interface Choosable {
  low: number;
  high: number;
  value: number;
}

/** The first exponents at which a format overflows, is normal, and is in range (`smallest`). `counts` are elements by
 *  exponent of the unscaled gradient, from `first` on. Exponents are drawn between the heights `low` and `high`. */
export interface FormatWindow {
  format: string;
  overflow: number;
  normal: number;
  smallest: number;
  low: number;
  high: number;
  first: number;
  counts: number[];
  elements: number;
}

export interface Figure {
  data: object[];
  layout: { meta: Meta; [key: string]: unknown };
}

export type Severity = "critical" | "warning" | "notice";

/** What is wrong, why, and how to fix it. It applies from `first_step` to `last_step`, if it concerns certain steps. */
export interface Finding {
  rule: string;
  severity: Severity;
  title: string;
  explanation: string;
  fix: string;
  scaler: string;
  first_step: number | null;
  last_step: number | null;
  parameters: string[];
  figure: string;
  stop: boolean;
  second: string;
}

/** The alert for a rule's finding. Times are microseconds since the epoch. */
export interface Alert {
  rule: string;
  state: "pending" | "firing" | "resolved";
  severity: Severity;
  title: string;
  since: number;
  fired: number | null;
  resolved: number | null;
  acknowledged: number | null;
  acknowledged_by: string | null;
  /** The mute that stops its messages. `run_id` is null if the mute covers more than one run. */
  mute: { mute_id: string; run_id: string | null; until: number | null } | null;
  deliveries: Delivery[];
}

/** The delivery of its newest message to a target. `trouble` is why it failed, `due` the time of the next attempt. */
export interface Delivery {
  target: string;
  sent: number | null;
  due: number | null;
  trouble: string | null;
}

/** A pending or firing alert of any run. */
export interface OpenAlert extends Alert, Named {}

/** The run of a list's row. */
interface Named {
  run_id: string;
  project: string;
  name: string;
  owner: string;
}

/** A message to one target. */
export interface Message extends Delivery, Named {
  rule: string;
  title: string;
  made: number;
  attempts: number;
}

/** A mute of a run, a project or all runs, for one rule or all. Null means any, and for `until`, no end. */
export interface ListedMute {
  mute_id: string;
  run_id: string | null;
  /** The run's name. */
  name: string | null;
  owner: string | null;
  project: string | null;
  rule: string | null;
  until: number | null;
  made_by: string;
}

export interface Diagnosis {
  verdict: string;
  severity: Severity | null;
  findings: Finding[];
  notices: string[];
  training?: { sentence?: string };
  /** Null if the script allows none. `asked` is when a pending measurement was requested (us since the epoch). */
  measurement?: { asked: number | null; rules: string[] } | null;
}

/** The parts of a simulation's response that the page uses. */
export interface Simulated {
  recommended: { words: string; code: string; policy: { name: string; [setting: string]: string | number | null } };
}

export interface Problem {
  title: string;
  status: number;
  detail?: string;
  field?: string;
}

export type Colour = string | [number, string][];
export type Roles = Record<string, Colour>;
