// Findings as the page tells them apart, and the steps they hold for.

import assert from "node:assert/strict";
import { test } from "node:test";

import { answerOf, numbered, stepsOf } from "../../web/js/findings.js";

test("a finding keeps its name while its numbers change and others come before it", () => {
  const one = { rule: "skip_rate", scaler: "g", title: "1 of 9" };
  const later = { ...one, title: "2 of 9" };
  const other = { rule: "skip_rate", scaler: "d", title: "3 of 9" };
  const keys = (findings) => numbered(findings).map(({ key }) => key);
  assert.equal(keys([one])[0], keys([other, later])[1]);
  assert.equal(new Set(keys([one, later, other])).size, 3);
});

test("the steps of a finding are shown to the last", () => {
  assert.deepEqual(stepsOf({ first_step: 3, last_step: 3 }), { start: 3, stop: 4 });
  assert.deepEqual(stepsOf({ first_step: 0, last_step: 9 }), { start: 0, stop: 10 });
  assert.equal(stepsOf({ first_step: null, last_step: null }), null);
});

test("what needs nothing done is said in a line; else the worst finding is the answer", () => {
  const [notice, warning] = [{ severity: "notice", title: "n" }, { severity: "warning", title: "w" }];
  assert.equal(answerOf([], true), "No problems found.");
  assert.equal(answerOf([notice, notice], true), "Healthy · 2 notices");
  assert.match(answerOf([], false), /^No steps recorded yet/);
  assert.match(answerOf([notice], false), /^No steps recorded yet/);
  assert.deepEqual([answerOf([warning, notice], true), answerOf([warning], false)], ["w", "w"]);
});
