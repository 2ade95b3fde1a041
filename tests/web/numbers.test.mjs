// The words beside the numbers of a run.

import assert from "node:assert/strict";
import { test } from "node:test";

import { budgetAdvice, budgetWords, healthWords, intervalWords } from "../../web/js/numbers.js";

test("the interval in force is told, where the run tells it", () => {
  assert.equal(intervalWords({ sampling_interval: null }), "");
  assert.equal(intervalWords({ sampling_interval: 1 }), "every step");
  assert.equal(intervalWords({ sampling_interval: 128 }), "every 128 steps");
});

test("the budget is named, and whether it is exceeded; a fixed interval has none", () => {
  assert.equal(budgetWords({ budget: null, over_budget: false }), "");
  assert.equal(budgetWords({ budget: 0.01, over_budget: false }), "budget 1\u202f%");
  assert.equal(budgetWords({ budget: 0.005, over_budget: true }), "over the budget of 0.5\u202f% at the recent rate");
});

test("one line says whether records were lost and what the monitor cost", () => {
  assert.equal(healthWords({ status: "running", lost_records: 0, overhead: 0.008 }), "Recording, 0 lost, 0.8\u202f% of training time");
  assert.equal(healthWords({ status: "finished", lost_records: 3, overhead: null }), "Recorded, 3 lost");
});

test("a monitor over its budget says what to change; one within it, or without a budget, says nothing", () => {
  assert.match(budgetAdvice({ over_budget: true, budget: 0.01, sampling_interval: 128 }), /budget of 1\u202f% .* one step in 128.*Config\(budget=\)/);
  assert.equal(budgetAdvice({ over_budget: false, budget: 0.01, sampling_interval: 8 }), "");
  assert.equal(budgetAdvice({ over_budget: true, budget: null, sampling_interval: 1 }), "");
});
