// Below the simulator's chart: a form for the policy to try, its outcome, and a search for a better setting.

import { get } from "./api.js";
import { codeBlock, copyButton } from "./code.js";
import { h, renderForm, select } from "./dom.js";
import { html, nothing } from "./lit-html.js";

// A replay of a long run costs the server a second, so the same one is not repeated with each update.
const REST_MS = 15_000;

/** @type {Record<string, string>} */
const HINTS = {
  init_scale: "initial loss scale",
  growth_factor: "factor of each growth",
  backoff_factor: "factor of each back-off after an overflow",
  growth_interval: "steps without an overflow before the scale grows",
};

export class Simulate {
  /** @type {Meta} */
  #meta = { title: "" };
  /** Errors by field. @type {Record<string, string>} */
  #wrong = {};
  #advice = "";
  #advising = false;

  /** @param {string} run @param {Charts} charts @param {(view: View) => void} onView */
  constructor(run, charts, onView) {
    this.run = run;
    this.charts = charts;
    this.onView = onView;
    this.element = h("section", { class: "part simulate", "aria-label": "A policy to try", hidden: true });
    const panel = charts.panelOf("simulated");
    if (!panel) return;
    panel.restMs = REST_MS;
    panel.onDrawn = (meta) => this.#show(meta);
    panel.onRefused = (error) => this.#refuse(error);
  }

  /** @param {Meta} meta */
  #show(meta) {
    this.element.hidden = !meta.form;
    if (!meta.form) return;
    const refused = this.#wrong;
    this.#meta = meta;
    this.#wrong = {};
    this.#draw();
    for (const input of this.#inputs) {
      const value = meta.form.numbers[input.name] ?? "";
      if (input !== document.activeElement || refused[input.name]) input.value = String(value);
    }
  }

  get #inputs() {
    return this.element.querySelectorAll("input");
  }

  #draw() {
    const { form, sentence, code = "", standing = "" } = this.#meta;
    const { policies = [], policy = "", numbers = {} } = form ?? {};
    const names = policies.map((each) => /** @type {const} */ ([each, each]));
    const fields = Object.entries(HINTS).map(([name, hint]) => {
      const wrong = this.#wrong[name];
      return html`<label ?hidden=${numbers[name] == null}>${name}<input name=${name} type="number" step="any" title=${hint}
        aria-describedby=${`wrong-${name}`} aria-invalid=${wrong ? "true" : nothing} @change=${() => this.#choose(this.#setting())}
        ><span class="wrong" id=${`wrong-${name}`} role="alert">${wrong}</span></label>`;
    });
    renderForm(
      html`
        <form @submit=${(/** @type {Event} */ event) => event.preventDefault()}>
          <label>policy${select({ label: "Policy", options: names, chosen: policy, onChoose: (value) => this.#choose({ policy: value }) })}</label>
          ${fields}
        </form>
        <p class="sentence" role="status">${sentence}</p>
        <div class="ways">
          ${codeBlock(code, standing, copyButton(code))}
          <button type="button" ?hidden=${standing.startsWith("Recommended")} ?disabled=${this.#advising} @click=${() => void this.#advise()}>Find a better setting</button>
        </div>
        <p class="caption" role="status" ?hidden=${!this.#advice}>${this.#advice}</p>
      `,
      this.element,
    );
  }

  /** Show an error beside its field; the chart stays. Return whether it is shown. @param {Refused} error */
  #refuse({ field, message }) {
    const name = (field ?? "").replace(/^sim_/, "");
    const found = name in HINTS;
    if (found) this.#wrong = { ...this.#wrong, [name]: message.replace(/^\w+: /, "") };
    if (found) this.#draw();
    return found && !this.element.hidden;
  }

  /** The whole setting in the form. @returns {Record<string, string>} */
  #setting() {
    const told = [...this.#inputs].filter(({ value, parentElement }) => value !== "" && !parentElement?.hidden);
    return { policy: this.element.querySelector("select")?.value ?? "", ...Object.fromEntries(told.map(({ name, value }) => [name, value])) };
  }

  /** @param {Record<string, string>} setting the policy's defaults fill the rest */
  #choose(setting) {
    const { view } = this.charts;
    const prefix = this.#meta.form?.prefix ?? "";
    const others = Object.entries(view.choices).filter(([name]) => !name.startsWith(prefix));
    const ours = Object.entries(setting).map(([name, value]) => [prefix + name, value]);
    this.onView({ ...view, choices: Object.fromEntries([...others, ...ours]) });
  }

  async #advise() {
    this.#tell("Trying settings. This takes a few seconds for a long run.", true);
    try {
      const stream = this.charts.view.stream;
      const query = stream === null ? "" : `?stream=${encodeURIComponent(stream)}`;
      const { recommended } = /** @type {Simulated} */ (await get(`/runs/${encodeURIComponent(this.run)}/simulate${query}`));
      const { name, ...numbers } = recommended.policy;
      const set = Object.entries(numbers).flatMap(([key, value]) => (value === null ? [] : [[key, String(value)]]));
      this.#tell(recommended.code ? "" : recommended.words);
      this.#choose({ policy: name, ...Object.fromEntries(set) });
    } catch (error) {
      this.#tell(error instanceof Error ? error.message : String(error));
    }
  }

  /** @param {string} words @param {boolean} [advising] whether the search goes on */
  #tell(words, advising = false) {
    this.#advice = words;
    this.#advising = advising;
    this.#draw();
  }
}
