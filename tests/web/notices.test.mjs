// What a reader must know before trusting the page.

import assert from "node:assert/strict";
import { test } from "node:test";

import { noticesOf } from "../../web/js/notices.js";

const sound = { records: 1000, lost_records: 0, dropped: 0, errors: 0, disabled: false, budget: 0.01, over_budget: false };

test("a sound run needs no notice", () => {
  assert.deepEqual(noticesOf(sound), []);
});

test("each thing that is missing is said with its number and what to do", () => {
  const [lost] = noticesOf({ ...sound, lost_records: 2 });
  assert.match(lost, /^2 records of 1\u202f002 missing.*when ampmon next runs there/);
  const [dropped] = noticesOf({ ...sound, dropped: 7 });
  assert.match(dropped, /^7 records dropped.*AMPMON_DIR/);
  const [errors] = noticesOf({ ...sound, errors: 1 });
  assert.match(errors, /failed 1 time;.*events below/);
  const [over] = noticesOf({ ...sound, over_budget: true, sampling_interval: 128 });
  assert.match(over, /budget of 1\u202f% of the training time.*one update in 128.*Config\(budget=\)/);
  const [off] = noticesOf({ ...sound, disabled: true });
  assert.match(off, /disabled/);
});
