/** What the page's modules pass to one another, and what the server answers. Development only. */

import type { Command } from "../js/keyboard.js";
import type { Advance } from "../js/live.js";

export interface View {
  /** The step, the time, or the step that the user gave to ampmon.log. */
  x: "step" | "time" | "user";
  /** First x shown and the one after the last: steps, or microseconds since the epoch. Null is the run's own end. */
  start: number | null;
  stop: number | null;
  stream: string | null;
  /** The rank that is looked at by itself; null is all of them. */
  rank: string | null;
  /** The parameter that is looked at closely. */
  parameter: string | null;
  /** Follow the newest so many updates; null shows `start` to `stop`. */
  follow: number | null;
  /** The step that is marked, such as a skip's, or its time in microseconds: an x of the axis. */
  at: number | null;
  /** What the reader chose of charts, by the name of the choice: parameters of their addresses. */
  choices: Record<string, string>;
}

export type Address =
  | { page: "list"; filters: Record<string, string> }
  | { page: "run"; run: string; view: View }
  | { page: "compare"; runs: string[]; view: View }
  | { page: "alerts" }
  | { page: "nothing" };

/** What fills the page below its bar. */
export interface Page {
  element: HTMLElement;
  title: string;
  /** The runs whose news it wants; none is all. */
  follows: string[];
  /** Fetches what has changed. Rejects where the server does not answer. */
  refresh(): Promise<void>;
  /** What a stream of news has told, of whichever run. */
  hear?(advances: Advance[]): void;
  /** Each second: ages change by themselves. */
  tick?(): void;
  /** Shows another address of the same page; false where it is another page. */
  look(address: Address): boolean;
  recolour?(): void;
  /** Does what a key asks for; false where that is nothing of this page. */
  act?(command: Command): boolean;
  close?(): void;
}

/** Where on a chart, or in which row of a heatmap, a click was. */
export interface Point {
  y: number | string;
}

export interface Range {
  start: number;
  stop: number;
}

export type Status = "running" | "finished" | "crashed" | "silent";

/** What a run's own page gets beside its summary. */
export interface Detail extends Summary {
  identity: { config: Record<string, unknown> };
  /** Null where the server tells nobody of anything. */
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

/** Who is signed in. */
export interface Me {
  owner: string | null;
  scopes: string[];
  projects: string[] | null;
  signed_in_elsewhere: boolean;
}

/** Times are microseconds since the epoch, shares 0..1; null is "not known yet". */
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
  /** Updates between samples, the share of training time that they are kept to, and whether the rarest exceed it. */
  sampling_interval: number | null;
  budget: number | null;
  over_budget: boolean;
  ranks: number;
  attempts: number;
  /** The worst finding in words, or "healthy"; null where nobody has looked. */
  verdict: string | null;
  severity: Severity | null;
  /** Alerts that fire and nobody has acknowledged. */
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

/** A skip of one optimizer at one step, and the ranks that made it. */
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
}

/** A name that was logged, on one stream. */
export interface LoggedName {
  name: string;
  user_steps: number;
}

/** A page of the parameters of one sampled update; numbers of all of them, and of those that a search found. */
export interface Sampled {
  step: number;
  total: number;
  found: number;
  on_grid: number;
  overflowed: number;
  sampled: boolean;
  parameters: ParameterRow[];
}

/** What a chart leaves to the reader: a parameter of its address, and the values that it can have, each in words.
 *  Where there are no options, any text. */
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
  /** Whether nothing of the run is ever drawn here, so that nothing need stand in its place. */
  absent?: boolean;
  definitions?: Record<string, string>;
  choices?: Choice[];
  /** What a click on each row chooses, from top to bottom: the name of the choice and its value. */
  opens?: [string, string][];
  /** Of its times: minutes east of UTC; without it they are in UTC. */
  zone?: number;
  /** A choice between whole numbers. */
  slider?: Choosable;
  /** What a number format holds, by exponents of the scaled gradient, and what there is to hold. */
  window?: FormatWindow;
  /** What the chart comes to, and what to write for it. */
  sentence?: string;
  /** What the choice is beside the run's recommendation, and the code of an alternative. */
  standing?: string;
  code?: string;
  /** The policy that is simulated; null is what it does not have. */
  form?: { prefix: string; policies: string[]; policy: string; numbers: Record<string, number | null> };
}

export interface Choosable {
  low: number;
  high: number;
  value: number;
}

/** Where a format overflows, is normal and ends, as the first exponents that do; `counts` of elements by exponent of the
 *  unscaled gradient, from `first` on. Exponents are drawn between the heights `low` and `high`. */
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

/** What is wrong, why, and what to write instead. It holds from `first_step` to `last_step`, if of certain steps. */
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

/** How the finding of a rule is told. Times are microseconds since the epoch. */
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
  /** What keeps it from being told; of no run, where it is of more than one. */
  mute: { mute_id: string; run_id: string | null; until: number | null } | null;
  deliveries: Delivery[];
}

/** How its newest message stands with a target; `trouble` is why it was not delivered, `due` when that is tried again. */
export interface Delivery {
  target: string;
  sent: number | null;
  due: number | null;
  trouble: string | null;
}

/** An alert of any run that is pending or fires. */
export interface OpenAlert extends Alert, Named {}

/** What a list tells of the run of a row. */
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

/** A mute of a run, a project or everything, of one rule or all; null is any, and for ever. */
export interface ListedMute {
  mute_id: string;
  run_id: string | null;
  /** Of the run. */
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
  /** Null where the script allows none; when one was asked for (us since the epoch) and is still to come. */
  measurement?: { asked: number | null; rules: string[] } | null;
}

/** What of a simulation's answer the page uses. */
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
