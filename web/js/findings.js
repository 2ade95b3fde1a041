// What is wrong with a run: one line, which opens to all findings with reasons, code to write instead, and steps.

import { mayChange } from "./account.js";
import { alertLine, hour, wordOf } from "./alerts.js";
import { succeeded } from "./browser.js";
import { codeBlock, copyButton, h, html, keyed, mark, nothing, render, verdictBadge, withCode } from "./dom.js";
import { plural, steps, unquoted } from "./format.js";
import { get, pathOf, send, urlOf } from "./server.js";

export class Findings {
  element = h("details", { class: "findings" });
  #list = h("div");
  /** @type {Detail | null} */
  #run = null;
  /** @type {Diagnosis | null} */
  #newest = null;

  /** `onAlert` is called after each action on an alert.
   * @param {string} run @param {(finding: Finding, steps: Span) => void} onSteps @param {() => void} onAlert */
  constructor(run, onSteps, onAlert) {
    this.run = run;
    this.path = pathOf(run);
    this.onSteps = onSteps;
    this.onAlert = onAlert;
    this.#draw();
  }

  /** Problems that are in no finding, such as missing data or a failed monitor. */
  get notices() {
    return this.#newest?.notices ?? [];
  }

  /** Fetch and show the findings. Rejects if the server does not answer. */
  async refresh() {
    this.#newest = /** @type {Diagnosis} */ (await get(`${this.path}/diagnosis`));
    this.#draw();
  }

  /** Show the run's alerts, and its verdict until the findings arrive. @param {Detail} run */
  setRun(run) {
    this.#run = run;
    this.#draw();
  }

  /** Whether the run goes on. */
  get #going() {
    return this.#run?.status === "running" || this.#run?.status === "silent";
  }

  #draw() {
    const judged = this.#run?.severity === "notice" ? null : this.#run;
    const { severity, findings, training, updates } = this.#newest ?? { severity: judged?.severity ?? null, findings: [], training: null, updates: 0 };
    const answer = this.#newest?.answer ?? ((judged?.severity && judged.verdict) ?? "…");
    const more = severity === null || severity === "notice" ? 0 : Math.max(0, findings.length - 1);
    const alerts = this.#run?.alerts ?? [];
    const left = new Map(alerts.map((alert) => [alert.rule, alert]));
    keyed(this.#list, findings, {
      key: ({ key }) => key,
      make: (finding) => h("details", { class: "finding", open: finding === findings[0] && finding.severity !== "notice" }),
      update: (element, finding) => {
        mark(element, "data-rule", finding.rule);
        mark(element, "data-severity", finding.severity);
        render(this.#entry(finding, left.get(finding.rule) ?? null), element);
        left.delete(finding.rule);
      },
    });
    render(
      html`
        <summary>
          ${updates > 0 || severity !== null ? verdictBadge(severity) : nothing}
          <span class="answer">${withCode(answer)}</span>
          <span class="more">${more ? `and ${plural(more, "more finding")}` : ""}</span>
          <span class="all">${plural(findings.length, "finding")}</span>
          ${alerts.some((alert) => wordOf(alert) === "firing") ? alarm("firing") : nothing}
        </summary>
        ${this.#list}
        <div class="alerts">
          ${[...left.values()].map((alert) => alertLine(this.run, alert, this.onAlert, { title: unquoted(alert.title) }))}
        </div>
        <p class="caption">${training?.sentence}</p>
      `,
      this.element,
    );
  }

  /** @param {Finding} finding @param {Alert | null} alert */
  #entry(finding, alert) {
    const { severity, title, explanation, stop, where, fix, second, rule } = finding;
    const range = stepsOf(finding);
    return html`
      <summary>${verdictBadge(severity)}<span class="title">${withCode(title)}</span>${alarm(wordOf(alert))}</summary>
      ${alertLine(this.run, alert, this.onAlert)}
      <p>${withCode(explanation)}</p>
      ${stop && this.#going ? html`<p class="stop">Stop this run: it cannot recover.</p>` : nothing}
      <p class="caption" ?hidden=${!where}>${withCode(where)}</p>
      ${codeBlock(fix, fix && (second || "Recommended:"))}
      <p class="ways">
        ${copyButton(fix)}
        ${range && html`<button type="button" @click=${() => this.onSteps(finding, range)}>Show ${steps(range.start, range.stop - 1)}</button>`}
        <a href=${urlOf(`findings/${encodeURIComponent(rule)}`)}>Learn more</a>
        ${this.#measuring(rule)}
      </p>
    `;
  }

  /** A button that requests a measurement of fp16's gradient error, or when it was requested. @param {string} rule */
  #measuring(rule) {
    const newest = this.#newest;
    if (!newest?.measurement?.rules.includes(rule) || !this.#going) return nothing;
    const { asked, rules } = newest.measurement;
    if (asked !== null) return html`<span class="caption">Measurement requested at ${hour(asked)}. The trainer measures at most once an hour.</span>`;
    if (!this.#run || !mayChange(this.#run)) return nothing;
    const ask = async () => {
      if (!(await succeeded(() => send("POST", `${this.path}/measurement`)))) return;
      this.#newest = { ...newest, measurement: { asked: Date.now() * 1000, rules } };
      this.#draw();
    };
    return html`<button type="button" title="Have the trainer compare fp16 with fp32 gradients on one batch" @click=${ask}>Measure the error</button>`;
  }
}

/** @param {string} word the alert's state, or "" */
const alarm = (word) => word ? html`<span class="alarm" data-alarm=${word}>${word}</span>` : nothing;

/** @param {Finding} finding @returns {Span | null} */
export function stepsOf({ first_step, last_step }) {
  return first_step === null || last_step === null ? null : { start: first_step, stop: last_step + 1 };
}
