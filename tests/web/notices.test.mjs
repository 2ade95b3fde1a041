// What a reader must know before trusting the page.

import assert from "node:assert/strict";
import { test } from "node:test";

import { noticesOf } from "../../web/js/notices.js";

const sound = {
  ...{ status: "running", records: 1000, lost_records: 0, dropped: 0, thinned: 0, rivals: 0, errors: 0 },
  ...{ loss_window_ms: null, loss_window_why: null, disabled: false, budget: 0.01, over_budget: false },
};

test("a sound run needs no notice", () => {
  assert.deepEqual(noticesOf(sound), []);
});

test("each thing that is missing is said with its number and what to do", () => {
  const [lost] = noticesOf({ ...sound, lost_records: 2 });
  assert.match(lost, /^2 records of 1\u202f002 missing.*when ampmon next runs there/);
  const [dropped] = noticesOf({ ...sound, dropped: 7 });
  assert.match(dropped, /^7 records dropped.*AMPMON_DIR/);
  const [thinned] = noticesOf({ ...sound, thinned: 3 });
  assert.match(thinned, /^Samples of 3 updates left out.*Scale and skips are whole/);
  const [errors] = noticesOf({ ...sound, errors: 1 });
  assert.match(errors, /failed 1 time;.*events below/);
  const [over] = noticesOf({ ...sound, over_budget: true, sampling_interval: 128 });
  assert.match(over, /budget of 1\u202f% of the training time.*one update in 128.*Config\(budget=\)/);
  const [off] = noticesOf({ ...sound, disabled: true });
  assert.match(off, /disabled/);
});

test("records that pass through memory are said to be at risk, of a process that has not finished", () => {
  const memory = { ...sound, loss_window_ms: 100, loss_window_why: "the disk is full" };
  assert.match(noticesOf(memory)[0], /because the disk is full; a killed process may lose the last 100 ms/);
  assert.match(noticesOf({ ...memory, status: "crashed" })[0], /may have lost the last 100 ms/);
  assert.deepEqual(noticesOf({ ...memory, status: "finished" }), []);
});

test("who trains twice reads what to do", () => {
  assert.match(noticesOf({ ...sound, rivals: 1 })[0], /^1 process went on training.*AMPMON_RUN_ID/);
});

test("what is missing is told once: by the finding where there is one; what else is to be known stays", () => {
  const run = { ...sound, lost_records: 2, dropped: 7, rivals: 1, thinned: 3 };
  assert.equal(noticesOf(run).length, 4);
  const [left, ...more] = noticesOf(run, true);
  assert.match(left, /^Samples of 3 updates/);
  assert.deepEqual(more, []);
});
