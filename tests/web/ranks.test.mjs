// The ranks that a reader may look at alone.

import assert from "node:assert/strict";
import test from "node:test";

import { ALONE, options, ranksOf } from "../../web/js/numbers.js";

const stream = (rank, scaler = "default") => ({ stream: `${rank}`, rank, scaler, layout: "replicated" });

test("each rank is there once, in order, whatever its scalers", () => {
  assert.deepEqual(ranksOf({ streams: [stream(10), stream(2), stream(2, "critic"), stream(0)] }), [0, 2, 10]);
});

test("where a run has more updates than are drawn of one rank, the choice says how many are", () => {
  assert.deepEqual(options([0, 1], ALONE), [["", "all ranks"], ["0", "rank 0"], ["1", "rank 1"]]);
  assert.deepEqual(options([1], ALONE + 1)[1], ["1", "rank 1, its newest 32\u202f768 steps"]);
});
