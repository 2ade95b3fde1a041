// What is wrong with a run, in a line that opens: each finding with its reason, the code to write instead, and the steps
// that show it.

import { AlertLine, wordOf } from "./alerts.js";
import { get } from "./api.js";
import { Code } from "./code.js";
import { dotted, h, keyed, mark, say } from "./dom.js";
import { plural, steps } from "./format.js";
import { at } from "./root.js";
import { setVerdict, verdict } from "./verdict.js";

/** @import { Alert, Diagnosis, Finding, Range, Severity } from "../types/page.js" */

const NAMED = 5;

/** A finding as it stands on the page; the reader opens and closes it. */
class Entry {
  #verdict = verdict();
  #title = h("span", { class: "title" });
  #alarm = h("span", { class: "alarm", hidden: true });
  #explanation = h("p");
  #stop = h("p", { class: "stop" }, "Stop this run: it cannot recover.");
  #where = h("p", { class: "caption" });
  #code = new Code();
  #steps = h("button", { type: "button", onclick: () => this.#look() });
  #page = h("a", {}, "Learn more");
  /** @type {Finding | null} */
  #finding = null;

  /**
   * @param {(finding: Finding, steps: Range) => void} onSteps
   * @param {AlertLine} alert
   */
  constructor(onSteps, alert) {
    this.onSteps = onSteps;
    this.alert = alert;
    this.element = h(
      "details",
      { class: "finding" },
      h("summary", {}, this.#verdict, this.#title, this.#alarm),
      alert.element,
      this.#explanation,
      this.#stop,
      this.#where,
      this.#code.element,
      h("p", { class: "ways" }, this.#code.copy, this.#steps, this.#page),
    );
  }

  /**
   * @param {Finding} finding
   * @param {boolean} going whether training goes on
   * @param {boolean} several whether there are scalers that it is not of
   */
  show(finding, going, several) {
    this.#finding = finding;
    mark(this.element, "data-rule", finding.rule);
    mark(this.element, "data-severity", finding.severity);
    setVerdict(this.#verdict, finding.severity);
    write(this.#title, finding.title);
    write(this.#explanation, finding.explanation);
    this.#stop.hidden = !finding.stop || !going;
    this.#place(finding, several);
    this.#code.show(finding.fix, finding.fix && (finding.second || "Recommended:"));
    const range = stepsOf(finding);
    this.#steps.hidden = range === null;
    if (range) say(this.#steps, `Show ${steps(range.start, range.stop - 1)}`);
    mark(this.#page, "href", at(`findings/${encodeURIComponent(finding.rule)}`));
  }

  get rule() {
    return this.#finding?.rule ?? "";
  }

  /** @param {Alert | null} alert */
  heed(alert) {
    const word = wordOf(alert);
    this.#alarm.hidden = word === "";
    mark(this.#alarm, "data-alarm", word);
    say(this.#alarm, word);
    this.alert.show(alert);
  }

  /**
   * @param {Finding} finding
   * @param {boolean} several
   */
  #place({ parameters, scaler }, several) {
    const whose = several && scaler ? ["Scaler ", dotted(scaler)] : [];
    const names = parameters.slice(0, NAMED).flatMap((name, index) => [index ? ", " : whose.length ? " · in " : "In ", dotted(name)]);
    const rest = parameters.length - NAMED;
    const words = [...whose, ...names, ...(rest > 0 ? [` and ${plural(rest, "more parameter")}`] : [])];
    this.#where.hidden = words.length === 0;
    this.#where.replaceChildren(...words);
  }

  #look() {
    const range = this.#finding && stepsOf(this.#finding);
    if (this.#finding && range) this.onSteps(this.#finding, range);
  }
}

export class Findings {
  #verdict = verdict();
  #list = h("div");
  #answer = h("span", { class: "answer" }, "…");
  #more = h("span", { class: "more" });
  #alarm = h("span", { class: "alarm", "data-alarm": "firing", hidden: true }, "firing");
  #training = h("p", { class: "caption" });
  #others = h("div", { class: "alerts" });
  element = h(
    "details",
    { class: "findings" },
    h("summary", {}, this.#verdict, this.#answer, this.#more, this.#alarm),
    this.#list,
    this.#others,
    this.#training,
  );
  /** @type {WeakMap<HTMLElement, Entry>} */
  #entries = new WeakMap();
  /** @type {WeakMap<HTMLElement, AlertLine>} */
  #lines = new WeakMap();
  /** @type {Alert[]} */
  #alerts = [];
  /** @type {Diagnosis | null} */
  #newest = null;
  #going = true;
  #any = false;
  #several = false;

  /**
   * @param {string} run
   * @param {(finding: Finding, steps: Range) => void} onSteps
   * @param {() => void} onAlert called when an alert may stand otherwise
   */
  constructor(run, onSteps, onAlert) {
    this.run = run;
    this.onAlert = onAlert;
    this.path = `/runs/${encodeURIComponent(run)}/diagnosis`;
    this.onSteps = onSteps;
    this.#verdict.hidden = true;
  }

  /** Whether it says which records are missing, or may yet: until the findings are there, they are not told elsewhere. */
  get tellsGaps() {
    return this.#newest === null || this.#newest.findings.some(({ rule }) => rule === "telemetry_gaps");
  }

  /** Rules that could not judge the run. */
  get failed() {
    return this.#newest?.failed ?? [];
  }

  /**
   * Fetches and shows what is wrong now. Rejects where the server does not answer.
   * @param {boolean} going whether training goes on
   * @param {number} updates how many there are to judge by
   * @param {number} scalers
   */
  async refresh(going, updates, scalers) {
    const newest = /** @type {Diagnosis} */ (await get(this.path));
    const several = scalers > 1;
    const same = going === this.#going && updates > 0 === this.#any && several === this.#several;
    if (newest === this.#newest && same) return;
    this.#any = updates > 0;
    this.#several = several;
    this.#newest = newest;
    this.#going = going;
    this.#show(newest);
  }

  /**
   * Shows how the alerts stand: each with the first finding of its rule, and by itself where there is none.
   * @param {Alert[]} alerts
   */
  heed(alerts) {
    this.#alerts = alerts;
    this.#alarm.hidden = !alerts.some((alert) => wordOf(alert) === "firing");
    const told = new Set();
    for (const element of this.#list.children) {
      const entry = element instanceof HTMLElement ? this.#entries.get(element) : undefined;
      if (!entry) continue;
      entry.heed(told.has(entry.rule) ? null : (alerts.find(({ rule }) => rule === entry.rule) ?? null));
      told.add(entry.rule);
    }
    keyed(this.#others, alerts.filter(({ rule }) => !told.has(rule)), {
      key: ({ rule }) => rule,
      make: () => this.#line(),
      update: (element, alert) => this.#lines.get(element)?.show(alert, alert.title.replaceAll("`", "")),
    });
  }

  #line() {
    const line = new AlertLine(this.run, this.onAlert);
    this.#lines.set(line.element, line);
    return line.element;
  }

  /** @param {Diagnosis} diagnosis */
  #show({ severity, findings, training }) {
    this.#verdict.hidden = !this.#any && severity === null;
    setVerdict(this.#verdict, severity);
    write(this.#answer, answerOf(findings, this.#any));
    const others = severity === null || severity === "notice" ? 0 : findings.length - 1;
    say(this.#more, others ? `and ${plural(others, "more finding")}` : "");
    say(this.#training, training?.sentence ?? "");
    keyed(this.#list, numbered(findings), {
      key: ({ key }) => key,
      make: ({ finding, index }) => this.#make(index === 0 && finding.severity !== "notice"),
      update: (element, { finding }) => this.#entries.get(element)?.show(finding, this.#going, this.#several),
    });
    this.heed(this.#alerts);
  }

  /** @param {boolean} open */
  #make(open) {
    const entry = new Entry(this.onSteps, new AlertLine(this.run, this.onAlert));
    entry.element.open = open;
    this.#entries.set(entry.element, entry);
    return entry.element;
  }
}

/**
 * Puts words into an element, what stands in backticks as code.
 * @param {HTMLElement} element
 * @param {string} words
 */
function write(element, words) {
  if (element.dataset.words === words) return;
  element.dataset.words = words;
  element.replaceChildren(...words.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part)));
}

/**
 * The answer in a line: the worst finding, or that nothing needs doing.
 * @param {Pick<Finding, "severity" | "title">[]} findings the worst first
 * @param {boolean} any whether there is an update to judge by
 */
export function answerOf([worst, ...others], any) {
  if (worst && worst.severity !== "notice") return worst.title;
  if (!any) return "No steps recorded yet.";
  return worst ? `Healthy · ${plural(1 + others.length, "notice")}` : "No problems found.";
}

/**
 * Each finding with a name that stays while its numbers change: several may be of one rule.
 * @param {Finding[]} findings
 */
export function numbered(findings) {
  /** @type {Map<string, number>} */
  const seen = new Map();
  return findings.map((finding, index) => {
    const of = `${finding.rule} ${finding.scaler}`;
    const number = (seen.get(of) ?? 0) + 1;
    seen.set(of, number);
    return { key: `${of} ${number}`, finding, index };
  });
}

/** @param {Finding} finding @returns {Range | null} */
export function stepsOf({ first_step, last_step }) {
  return first_step === null || last_step === null ? null : { start: first_step, stop: last_step + 1 };
}
