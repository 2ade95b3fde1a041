import assert from "node:assert/strict";
import { test } from "node:test";

import { captionOf } from "../../web/js/parameters.js";

const SAMPLED = { step: 3, total: 2, found: 2, on_grid: 2, overflowed: 0, sampled: false };
const HINT = "pass model= to GradScaler() or watch()";

test("a parameter that no model names has a hint how to name it, and others have none", () => {
  const caption = (...names) => captionOf({ ...SAMPLED, parameters: names.map((name) => ({ name })) }, { sort: "worst" });
  assert.ok(caption("head.weight", "parameter 1 [64 × 3]").includes(HINT));
  assert.ok(caption("parameter 0 [scalar]").includes(HINT));
  assert.ok(!caption("head.weight", "parameter").includes(HINT));
});
