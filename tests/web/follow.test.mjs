// Which stretch the charts ask for while a run grows.

import assert from "node:assert/strict";
import { test } from "node:test";

import { wholeView } from "../../web/js/address.js";
import { asked, endOf, pauseWords } from "../../web/js/range.js";

const end = { step: 4999, time: 1_700_000_000_000_000, updates: 5000 };
const later = { step: 6999, time: 1_700_000_900_000_000, updates: 7000 };

test("the newest updates are asked for by the step of the first of them", () => {
  const { start, stop, x, follow } = asked({ ...wholeView(), x: "time", follow: 1000 }, end, null);
  assert.deepEqual({ start, stop, x, follow }, { start: 4000, stop: null, x: "step", follow: null });
});

test("of a run that is shorter than what is followed, all is asked for; of one that is not known yet, nothing", () => {
  assert.equal(asked({ ...wholeView(), follow: 10_000 }, end, null)?.start, 0);
  assert.equal(asked({ ...wholeView(), follow: 100 }, null, null), null);
});

test("a pause ends what is asked for at its update, followed or not", () => {
  const followed = asked({ ...wholeView(), follow: 100 }, later, end);
  assert.deepEqual([followed?.start, followed?.stop], [4900, 5000]);
  assert.deepEqual(asked(wholeView(), later, end), { ...wholeView(), stop: 5000 });
  assert.equal(asked({ ...wholeView(), x: "time" }, later, end)?.stop, end.time + 1);
});

test("a stretch before a pause, or one that the reader chose after it, is asked for as it is", () => {
  for (const [start, stop] of [[10, 20], [6000, 6500]]) {
    const view = { ...wholeView(), start, stop };
    assert.deepEqual(asked(view, later, end), view);
  }
});

test("a run without an update has no end", () => {
  assert.equal(endOf({ last_step: null, last_time: 3, updates: 0 }), null);
});

test("a pause says for how long, and how many updates came since", () => {
  const pause = { ...end, since: 1000 };
  assert.equal(pauseWords(pause, later, 31_000), "Paused 30\u202fs ago; 2\u202f000 new steps since");
  assert.equal(pauseWords(pause, end, 1000), "Paused 0\u202fs ago; no new steps since");
});
