// Below the simulator's chart: the policy and its setting to be tried, what comes of it, and the best of a few.

import { get } from "./api.js";
import { Code } from "./code.js";
import { h, keyed, mark, say } from "./dom.js";

/** @import { Refused } from "./api.js" */
/** @import { Charts } from "./charts.js" */
/** @import { Meta, Simulated, View } from "../types/page.js" */

// A replay costs the server a second where a run is long: the same one is not asked for again with each update.
const REST_MS = 15_000;

/** @type {Record<string, string>} */
const HINTS = {
  init_scale: "initial loss scale",
  growth_factor: "factor of each growth",
  backoff_factor: "factor of each back-off after an overflow",
  growth_interval: "steps without an overflow before the scale grows",
};

export class Simulate {
  #policy = h("select", { "aria-label": "Policy", onchange: () => this.#choose({ policy: this.#policy.value }) });
  #numbers = Object.keys(HINTS).map((name) => this.#field(name));
  #recommend = h("button", { type: "button", onclick: () => void this.#advise() }, "Find a better setting");
  #sentence = h("p", { class: "sentence", role: "status" });
  #advice = h("p", { class: "caption", role: "status", hidden: true });
  #code = new Code();
  #prefix = "";

  /**
   * @param {string} run
   * @param {Charts} charts
   * @param {(view: View) => void} onView
   */
  constructor(run, charts, onView) {
    this.run = run;
    this.charts = charts;
    this.onView = onView;
    this.element = h(
      "section",
      { class: "part simulate", "aria-label": "A policy to try", hidden: true },
      h("form", { onsubmit: (event) => event.preventDefault() }, h("label", {}, "policy", this.#policy), ...this.#numbers.map(({ label }) => label)),
      this.#sentence,
      h("div", { class: "ways" }, this.#code.element, this.#recommend),
      this.#advice,
    );
    const panel = charts.named("simulated");
    if (!panel) return;
    panel.restMs = REST_MS;
    panel.onDrawn = (meta) => this.#show(meta);
    panel.onRefused = (error) => this.#refuse(error);
  }

  /** @param {string} name */
  #field(name) {
    const wrong = h("span", { class: "wrong", id: `wrong-${name}`, role: "alert" });
    const input = h("input", { name, type: "number", step: "any", title: HINTS[name], "aria-describedby": wrong.id, onchange: () => this.#choose(this.#setting()) });
    return { name, input, wrong, label: h("label", {}, name, input, wrong) };
  }

  /** @param {Meta} meta */
  #show({ form, sentence, code, standing }) {
    this.element.hidden = !form;
    if (!form) return;
    this.#prefix = form.prefix;
    keyed(this.#policy, form.policies, {
      key: (policy) => policy,
      make: (policy) => h("option", { value: policy }, policy),
    });
    this.#policy.value = form.policy;
    for (const { name, input, wrong, label } of this.#numbers) {
      const value = form.numbers[name] ?? null;
      label.hidden = value === null;
      if (input !== document.activeElement || wrong.textContent) input.value = value === null ? "" : String(value);
      this.#blame(name, "");
    }
    say(this.#sentence, sentence ?? "");
    this.#code.show(code ?? "", standing ?? "");
    this.#recommend.hidden = (standing ?? "").startsWith("Recommended");
  }

  /**
   * Says beside a field what is wrong with it; the chart stays as it was.
   * @param {Refused} error
   */
  #refuse({ field, message }) {
    const name = (field ?? "").replace(/^sim_/, "");
    const found = this.#numbers.some((number) => number.name === name);
    if (found) this.#blame(name, message.replace(/^\w+: /, ""));
    return found && !this.element.hidden;
  }

  /**
   * @param {string} name
   * @param {string} why nothing where it is right
   */
  #blame(name, why) {
    for (const { name: own, input, wrong } of this.#numbers) {
      if (own !== name) continue;
      say(wrong, why);
      mark(input, "aria-invalid", why ? "true" : null);
    }
  }

  /** The whole setting that stands in the form. @returns {Record<string, string>} */
  #setting() {
    const told = this.#numbers.filter(({ input, label }) => !label.hidden && input.value !== "");
    return { policy: this.#policy.value, ...Object.fromEntries(told.map(({ name, input }) => [name, input.value])) };
  }

  /** @param {Record<string, string>} setting of which what is not there is the policy's own */
  #choose(setting) {
    const { view } = this.charts;
    const others = Object.entries(view.choices).filter(([name]) => !name.startsWith(this.#prefix));
    const ours = Object.entries(setting).map(([name, value]) => [this.#prefix + name, value]);
    this.onView({ ...view, choices: Object.fromEntries([...others, ...ours]) });
  }

  async #advise() {
    this.#recommend.disabled = true;
    this.#tell("Trying settings: a few seconds for a long run.");
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
    } finally {
      this.#recommend.disabled = false;
    }
  }

  /** @param {string} words */
  #tell(words) {
    this.#advice.hidden = words === "";
    say(this.#advice, words);
  }
}
