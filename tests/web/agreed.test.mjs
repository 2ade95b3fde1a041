// A skip that several ranks found is one row, which says whether all of them did.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ranksWords, together } from "../../web/js/agreed.js";

const skip = (step, rank, culprits = []) => ({ step, rank, scaler: "s", optimizer: "SGD", culprits });

test("ranks that skip the same step share a row, in the ledger's order", () => {
  const rows = together([skip(9, 1), skip(9, 0), skip(4, 1)], false);
  assert.deepEqual(rows.map(({ step, ranks }) => [step, ranks]), [[9, [0, 1]], [4, [1]]]);
});

test("what is told is told by a rank that knows a culprit", () => {
  const [row] = together([skip(9, 0), skip(9, 1, [{ parameter: "a", inf: 1, nan: 0 }])], false);
  assert.equal(row.rank, 1);
  assert.deepEqual(row.ranks, [0, 1]);
});

test("a step that others may still follow of is held back", () => {
  const rows = together([skip(9, 1), skip(9, 0), skip(4, 1)], true);
  assert.deepEqual(rows.map(({ step, ranks }) => [step, ranks]), [[9, [0, 1]]]);
  assert.deepEqual(together([], true), []);
});

test("it is said which ranks agree, where there are several", () => {
  assert.equal(ranksWords([0], 1), "");
  assert.equal(ranksWords([0, 1], 2), "all 2 ranks");
  assert.equal(ranksWords([3], 4), "rank 3 of 4");
  assert.equal(ranksWords([0, 2], 4), "ranks 0, 2 of 4");
});
