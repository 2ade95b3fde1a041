// The words beside the numbers of a run.

import assert from "node:assert/strict";
import { test } from "node:test";

import { budgetWords, intervalWords } from "../../web/js/numbers.js";

test("the interval in force is told, where the run tells it", () => {
  assert.equal(intervalWords({ sampling_interval: null }), "");
  assert.equal(intervalWords({ sampling_interval: 1 }), "every update");
  assert.equal(intervalWords({ sampling_interval: 128 }), "every 128 updates");
});

test("the budget is named, and whether it is exceeded; a fixed interval has none", () => {
  assert.equal(budgetWords({ budget: null, over_budget: false }), "");
  assert.equal(budgetWords({ budget: 0.01, over_budget: false }), "budget 1\u202f%");
  assert.equal(budgetWords({ budget: 0.005, over_budget: true }), "over the budget of 0.5\u202f%");
});
