// What a reader must know before trusting the page, held to the same golden file as a report's words.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { answerOf } from "../../web/js/findings.js";
import { noticesOf } from "../../web/js/notices.js";

const golden = JSON.parse(readFileSync(new URL("./notices.golden.json", import.meta.url), "utf8"));
const { sound } = golden;

test("every notice is as the golden file has it", () => {
  for (const [fields, gapsTold, failed, said] of golden.notices) {
    assert.deepEqual(noticesOf({ ...sound, ...fields }, gapsTold, failed), said);
  }
});

test("a run without an update is not called healthy", () => {
  assert.equal(answerOf([], false), golden.no_update);
});
