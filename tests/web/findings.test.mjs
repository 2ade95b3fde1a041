// The steps that findings hold for.

import assert from "node:assert/strict";
import { test } from "node:test";

import { stepsOf } from "../../web/js/findings.js";

test("the steps of a finding are shown to the last", () => {
  assert.deepEqual(stepsOf({ first_step: 3, last_step: 3 }), { start: 3, stop: 4 });
  assert.deepEqual(stepsOf({ first_step: 0, last_step: 9 }), { start: 0, stop: 10 });
  assert.equal(stepsOf({ first_step: null, last_step: null }), null);
});
