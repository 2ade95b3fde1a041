/** The types that the page's modules share, and those of the server's responses. They are global. Development only. */

interface View {
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

/** The list's query parameters, as the server names them. */
type ListFilters = Record<string, string>;

type Address =
  | { page: "list"; filters: ListFilters }
  | { page: "run"; run: string; view: View }
  | { page: "compare"; runs: string[]; view: View }
  | { page: "alerts" }
  | { page: "nothing" };

/** What the page around a page of the dashboard does for it. */
interface Host {
  /** Shows another address. A `typed` search is not worth a history entry. */
  go(address: Exclude<Address, { page: "nothing" | "alerts" }>, typed?: boolean): void;
  /** Checks the connection after a call without an answer. */
  onTrouble(): void;
  /** Leaves the page of a run that was deleted on it. */
  onDeleted(run: Summary): void;
  /** Refreshes the page as soon as its pace allows, or at once. One refresh runs at a time. */
  refresh: { (): void; now: () => void };
}

/** The content below the page's bar. */
interface Page {
  element: HTMLElement;
  title: string;
  /** The runs whose live updates it needs; all without it. */
  follows?: string[];
  charts?: Charts;
  /** Fetches changes. Rejects if the server does not answer. */
  refresh(): Promise<void>;
  /** Handles advances of any run from the live stream. */
  takeEvents?(advances: Advance[]): void;
  /** Called each second, to update ages. */
  tick?(): void;
  /** Shows another address of the same page. Returns false if it belongs to another page. */
  look(address: Address): boolean;
  /** Runs a key's command. Returns false if this page has no such command. */
  act?(command: Command): boolean;
  close?(): void;
}

/** The height in a chart, or the row of a heatmap, of a click. */
interface Point {
  y: number | string;
}

interface Span {
  start: number;
  stop: number;
}

type Status = "running" | "finished" | "crashed" | "silent";

/** A run's summary, with the details that only its own page gets. */
interface Detail extends Summary {
  identity: { config: Record<string, unknown> };
  /** Null if the server sends no alerts. */
  alerts: Alert[] | null;
  numbers: Record<string, RunNumber>;
  /** The state of the recording, and what to do if monitoring exceeds its budget. */
  recording: string;
  advice: string;
  choices: Choice[];
}

interface Stream {
  stream: string;
  rank: number;
  scaler: string;
  layout: string;
}

/** The signed-in user. */
interface Me {
  owner: string | null;
  scopes: string[];
  projects: string[] | null;
  signed_in_elsewhere: boolean;
}

/** Times are microseconds since the epoch, shares are 0..1, and null means not known yet. */
interface Summary {
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
  scale_words: string;
  subnormal_fraction: number | null;
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

interface Skip {
  step: number;
  scaler: string;
  optimizer: string;
  cause: string;
  origin: "input" | "forward" | "loss" | "backward" | null;
  loss: "finite" | "overflowed" | "not_finite" | null;
}

/** The newest skips that a search found, and where the next page begins. */
interface FoundSkips {
  skips: Skip[];
  next: string | null;
}

/** A skip of one optimizer at one step in words, with the ranks that skipped. `culprits` are named with their counts, and
 *  `others` say what is not named. */
interface SharedSkip extends Skip {
  ranks_words: string;
  words: { scale: string; cause: string; origin: string; loss: string; culprits: [string, string][]; others: string[] };
}

interface HappenedEvent {
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

interface ParameterRow {
  name: string;
  shape: number[];
  dtype: string;
  numel: number;
  /** Its statistics in words, by name. */
  words: Record<string, string>;
}

/** A logged name on one stream. */
interface LoggedName {
  name: string;
  user_steps: number;
}

/** A page of the parameters of one sampled update, how many the search found, and what the page says of them. */
interface Sampled {
  step: number;
  found: number;
  caption: string;
  parameters: ParameterRow[];
}

/** A reader's choice for a chart: a query parameter of its request, and its values, each with a label. Without options,
 *  any text. */
interface Choice {
  name: string;
  label: string;
  chosen: string;
  options: [string, string][];
}

interface Meta {
  title: string;
  caption?: string;
  empty?: string;
  /** Whether the chart never has data for this run, so the page leaves it out. */
  absent?: boolean;
  definitions?: Record<string, string>;
  choices?: Choice[];
  /** The choice that a click on each row makes, from top to bottom: its name and value. */
  opens?: [string, string][];
  /** The time zone that its time axis names, in minutes east of UTC. */
  zone?: number;
  /** The bases of the axes along which logarithms are drawn, by axis: "x", "y", "y2". */
  bases?: Record<string, number>;
  /** A choice between whole numbers. */
  slider?: Choosable;
  /** The range of a number format, by exponents of the scaled gradient, and the counts of elements. */
  window?: FormatRange;
  /** The chart's conclusion in words. */
  sentence?: string;
  /** How the choice compares with the run's recommendation, and the code of an alternative. */
  standing?: string;
  code?: string;
  /** The simulated policy, and the numbers that it has. */
  form?: { prefix: string; policies: string[]; policy: string; numbers: { name: string; hint: string; value: number }[] };
}

interface Choosable {
  low: number;
  high: number;
  value: number;
}

/** The first exponents at which a format overflows, is normal, and is in range (`smallest`). `counts` are elements by
 *  exponent of the unscaled gradient, from `first` on. Exponents are drawn between the heights `low` and `high`. */
interface FormatRange {
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

interface Figure {
  data: Trace[];
  layout: Layout;
}

interface Layout {
  meta: Meta;
  xaxis?: Axis;
  yaxis?: Axis;
  shapes?: { xref?: string; x0: number; x1: number }[];
  height: number;
  width?: number;
  margin: { t: number; r: number; b: number };
  [key: string]: unknown;
}

type Severity = "critical" | "warning" | "notice";

/** What is wrong, why, and how to fix it. It applies from `first_step` to `last_step`, if it concerns certain steps. */
interface Finding {
  /** Stays while the numbers change. */
  key: string;
  rule: string;
  severity: Severity;
  title: string;
  explanation: string;
  fix: string;
  scaler: string;
  first_step: number | null;
  last_step: number | null;
  /** Its scaler and parameters in words, with their names in backticks. */
  where: string;
  figure: string;
  stop: boolean;
  second: string;
}

/** The alert for a rule's finding. Times are microseconds since the epoch. */
interface Alert {
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
interface Delivery {
  target: string;
  sent: number | null;
  due: number | null;
  trouble: string | null;
}

/** A pending or firing alert of any run. */
interface OpenAlert extends Alert, Named {}

/** The run of a list's row. */
interface Named {
  run_id: string;
  project: string;
  name: string;
  owner: string;
}

/** A message to one target. */
interface Message extends Delivery, Named {
  rule: string;
  title: string;
  made: number;
  attempts: number;
}

/** A mute of a run, a project or all runs, for one rule or all. Null means any, and for `until`, no end. */
interface ListedMute {
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

interface Diagnosis {
  verdict: string;
  /** The verdict in one line, for a run with as many updates. */
  answer: string;
  updates: number;
  severity: Severity | null;
  findings: Finding[];
  notices: string[];
  training?: { sentence?: string };
  /** Null if the script allows none. `asked` is when a pending measurement was requested (us since the epoch). */
  measurement?: { asked: number | null; rules: string[] } | null;
}

/** The parts of a simulation's response that the page uses. */
interface Simulated {
  recommended: { words: string; code: string; policy: { name: string; [setting: string]: string | number | null } };
}

interface Problem {
  title: string;
  status: number;
  detail?: string;
  field?: string;
}

type Colour = string | [number, string][];
type Roles = Record<string, Colour>;

// What the modules share beside the server's responses. Their classes, and those of lit-html:

type Charts = import("../js/charts.js").Charts;
type Panel = import("../js/panel.js").Panel;
type Refused = import("../js/server.js").Refused;
type SignedOut = import("../js/server.js").SignedOut;
type Table<Row> = import("../js/table.js").Table<Row>;
type TemplateResult = import("../js/lit-html.js").TemplateResult;
type UserEvent = import("../js/lit-html.js").UserEvent;
type Plotly = NonNullable<Window["Plotly"]>;

type Maybe = number | null | undefined;
type Options = readonly (readonly [value: string, words: string])[];
type Child = string | Node | null | undefined | false;
type Attributes = Record<string, string | number | boolean | null | undefined | ((event: UserEvent) => void)>;

/** A tab's name in the address, its words and its content. */
type Tab = [name: string, words: string, content: HTMLElement[]];

interface SelectField {
  name?: string;
  label: string;
  options: Options;
  chosen: string;
  hidden?: boolean;
  onChoose(value: string): void;
}

/** `at` is a chart's path without its name, and `more` what its query has besides. For several runs, `charts` names the
 *  charts. `onTrouble` is called if the server does not answer. */
interface ChartsOptions {
  at: string;
  more?: string;
  charts?: string[];
  onView(view: View): void;
  onTrouble(): void;
}

/** What a key or a button does. */
type Command =
  | ("in" | "out" | "left" | "right" | "whole" | "follow" | "pause")
  | ("next" | "previous" | "link" | "theme" | "list" | "search" | "help");

interface ServerEvent {
  name: string;
  data: string;
}

/** A run has a new version, and for new updates its newest step. */
interface Advance {
  run: string;
  version: number;
  step?: number | null;
}

interface Connection {
  state: "starting" | "live" | "lost" | "refused" | "signed out";
  since: number;
  why: string;
}

/** A message between the browser's tabs. */
type TabMessage =
  | { kind: "wants"; tab: string; runs: string[] | null }
  | { kind: "ask" }
  | { kind: "check" }
  | { kind: "news"; advances: Advance[] }
  | { kind: "beat"; connection: Connection };

/** A column. `sort` is its key on the server, and `first` the order of the first click. The cell of an `opens` column
 *  is a button that opens the row. A `named` column has a user's text, which `title` gives in full. */
interface Column<Row> {
  name: string;
  cell: (row: Row) => string | TemplateResult;
  title?: (row: Row) => string;
  number?: boolean;
  tight?: boolean;
  named?: boolean;
  sort?: string;
  first?: "ascending";
  opens?: boolean;
  definition?: string;
  section?: string;
}

type Order = { sort: string; order: string };

/** `key` identifies a row. `onRow` opens it, and `isCurrent` tells whether it is shown elsewhere on the page. */
interface TableOptions<Row> {
  caption: string;
  columns: Column<Row>[];
  key(row: Row): string;
  onSort?(order: Order): void;
  onRow?(row: Row): void;
  isCurrent?(row: Row): boolean;
}

/** `read` rejects if the server does not answer, and gives null if its answer is out of date. `limit` and `most` are the
 *  numbers of rows at first and at most; `beside` is put next to the heading. The title is the table's caption, unless
 *  that has more to say. */
interface LedgerOptions<Row> extends Omit<TableOptions<Row>, "caption"> {
  title: string;
  name?: string;
  caption?: string;
  limit?: number;
  most?: number;
  read(limit: number): Promise<Read<Row> | null>;
  beside?(): TemplateResult;
}

/** The rows of a ledger, the label of the button for more ("" for none), and text above or in place of the rows. */
interface Read<Row> {
  rows: Row[];
  more: string;
  words: string;
  count?: string;
  caption?: string;
}

/** The definition of a term. `section` is the anchor on the page of measures. */
interface Definition {
  definition: string;
  section: string;
}

/** What a chart, and a statistic of a parameter's gradient, declare about themselves on the server. */
interface DeclaredChart {
  title: string;
  tab: string | null;
  choices: string[];
  sampled: boolean;
}

interface DeclaredStatistic extends Definition {
  title: string;
}

/** A number of a run in words. `exact` is copied with all digits; null if there is nothing to copy. With `since`, in
 *  microseconds since the epoch, its age is shown in place of `value`. */
interface RunNumber {
  value: string;
  more: string;
  exact: string | number | null;
  since: number | null;
}

/** What the server declares in the page: `numbers` are the names of a run's numbers by key, `statuses` a sign and a meaning
 *  each, `severities` a sign, and `scopes` what the user may do. */
interface Declared {
  charts: Record<string, DeclaredChart>;
  statistics: Record<string, DeclaredStatistic>;
  terms: Record<string, Definition>;
  numbers: Record<string, Record<string, string>>;
  statuses: Record<string, [sign: string, meaning: string]>;
  severities: Record<string, string>;
  scopes: Record<string, string>;
}

/** A change to one run. */
type RunChange = (run: Summary) => Promise<unknown>;

interface RunsAnswer {
  runs: Summary[];
  total: number;
  refused: string[];
}

/** The number of runs in each project and with each tag. */
interface Groups {
  projects: Record<string, number>;
  tags: Record<string, number>;
}

/** The history of a run's scale: paths of an SVG, and the words for it. */
interface Sparkline {
  path: string;
  skips: string;
  words: string;
}

/** The newest and the least loss of a run in words, and its name. */
interface Loss {
  name: string;
  words: string;
}

/** Data of the runs on the screen, beside their summaries. */
interface RunData<Datum> {
  of(run: Summary): Datum | null;
  setRuns(runs: Summary[]): void;
}

interface ListRow {
  run: Summary;
  scale: Sparkline | null;
  loss: Loss | null;
  chosen: boolean;
}

/** A `rare` column is hidden unless the reader chooses it. */
interface ListColumn extends Column<ListRow> {
  rare?: true;
}

/** A fact about each of several runs. */
interface FactLine {
  name: string;
  values: (string | null)[];
  differs: boolean;
}

/** How far a run is from the baseline. */
interface Distance {
  words: string;
  side: "above" | "below" | null;
}

interface Comparison {
  runs: (Summary | null)[];
  baseline: string | null;
  distances: (Distance | null)[];
  outcome: FactLine[];
  made: FactLine[];
  own_steps: boolean;
}

/** The step and time (in microseconds) of a run's newest update, and its number of updates. */
interface End {
  step: number;
  time: number;
  updates: number;
}

interface Pause extends End {
  since: number;
}

/** A chart is alone or in the stack, whose last chart shows the axis. */
type Position = "alone" | "stacked" | "last";
type PlotRange = [number | string, number | string];
type Saved = "png" | "svg" | "csv" | "link";

/** What a panel asks of all charts when the reader acts on it. */
interface ChartActions {
  view: View;
  zoom(panel: Panel, range: PlotRange): void;
  show(range: Span | null): void;
  click(panel: Panel, point: Point): void;
  choose(name: string, value: string): void;
  save(panel: Panel, kind: Saved): Promise<void>;
}

/** A point in a panel's plot, as shares of its size. */
interface Place {
  panel: Element;
  across: number;
  up: number;
}

/** A place to read: x in Plotly's units, the height as a share (`up`), and how far along x a mark may be (`near`). */
interface Spot {
  x: number;
  up: number | null;
  near: number;
}

interface Reading {
  words: string;
  colour: string;
}

/** The parts of Plotly's figures that the page reads. */
interface Trace {
  type: string;
  mode?: string;
  name?: string;
  hoverinfo?: string;
  hovertemplate?: string;
  width?: number;
  x?: unknown;
  y?: unknown;
  yaxis?: string;
  text?: unknown;
  customdata?: unknown;
  z?: unknown;
  meta?: { exact?: boolean };
  line?: { shape?: string; color?: string };
  marker?: { color?: string | string[] };
}

interface Axis {
  title?: { text?: string };
  type?: string;
  range?: [number, number];
  fixedrange?: boolean;
  unifiedhovertitle?: { text: string };
}

/** A column in base64, or a list of rows if its shape has two numbers. */
interface PackedColumn {
  dtype: string;
  bdata: string;
  shape?: string;
}
