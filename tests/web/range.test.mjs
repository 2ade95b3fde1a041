// What a drag or a button asks for, in whole steps or microseconds.

import assert from "node:assert/strict";
import { test } from "node:test";

import { about, around, fromPlot, moved, toPlot, within } from "../../web/js/range.js";

test("a drag over steps takes the steps within it", () => {
  assert.deepEqual(fromPlot([9.6, 20.2], "step"), { start: 10, stop: 21 });
});

test("a range shown is the range asked for", () => {
  for (const range of [{ start: 0, stop: 1 }, { start: 100, stop: 4000 }]) {
    assert.deepEqual(fromPlot(toPlot(range, "step", 0), "step"), range);
  }
});

test("between the user's own steps a drag takes the whole steps around it, and all of their updates are shown", () => {
  assert.deepEqual(fromPlot([3.2, 3.8], "user"), { start: 3, stop: 4 });
  assert.deepEqual(fromPlot([-0.5, 2.25], "user"), { start: 0, stop: 3 });
  assert.deepEqual(toPlot({ start: 3, stop: 4 }, "user"), [2.5, 4.5]);
});

test("dates are by a clock of the zone, wherever the browser is", () => {
  const range = { start: 1_700_000_000_000_000, stop: 1_700_000_000_500_001 };
  for (const browser of ["UTC", "Asia/Kolkata", "America/St_Johns"]) {
    process.env.TZ = browser;
    for (const [zone, low, high, midnight] of [
      [0, "2023-11-14 22:13:20", "2023-11-14 22:13:20.5", "2023-11-14T00:00Z"],
      [330, "2023-11-15 03:43:20", "2023-11-15 03:43:20.5", "2023-11-14T00:00+05:30"],
      [-210, "2023-11-14 18:43:20", "2023-11-14 18:43:20.5", "2023-11-14T00:00-03:30"],
    ]) {
      assert.deepEqual(fromPlot([low, high], "time", zone), range);
      assert.equal(toPlot(range, "time", zone)[1], `${high.replace(" ", "T")}00Z`);
      assert.deepEqual(fromPlot([1_700_000_000_000, 1_700_000_000_500], "time", zone), range);
      // Plotly leaves out a time of midnight.
      assert.equal(fromPlot(["2023-11-14", high], "time", zone).start, 1000 * Date.parse(midnight));
    }
  }
  assert.equal(fromPlot(["2023-11-14 22:13:20.1234", "2023-11-15"], "time", 0).start, range.start + 123_000);
});

test("the time since a start has no zone", () => {
  assert.deepEqual(toPlot({ start: 0, stop: 5000 }, "time"), [0, 5]);
});

test("a drag never asks for nothing, nor for steps before the first", () => {
  assert.deepEqual(fromPlot([3.2, 3.4], "step"), { start: 4, stop: 5 });
  assert.deepEqual(fromPlot([-8, 2], "step"), { start: 0, stop: 3 });
});

test("zooming keeps the middle, and moving keeps the length", () => {
  assert.deepEqual(moved({ start: 100, stop: 200 }, 0.5, 0), { start: 125, stop: 175 });
  assert.deepEqual(moved({ start: 100, stop: 200 }, 1, 0.5), { start: 150, stop: 250 });
  assert.deepEqual(moved({ start: 100, stop: 200 }, 0.5, 0, 110), { start: 85, stop: 135 });
  assert.deepEqual(moved({ start: 100, stop: 200 }, 0.5, 0, 300), { start: 125, stop: 175 });
});

test("zooming in ends at two steps", () => {
  assert.deepEqual(moved({ start: 100, stop: 102 }, 0.5, 0), { start: 100, stop: 102 });
});

test("zooming out ends at the whole run", () => {
  const whole = { start: 10, stop: 1000 };
  assert.deepEqual(within({ start: 700, stop: 1100 }, whole), { start: 700, stop: 1000 });
  assert.equal(within({ start: 0, stop: 1000 }, whole), null);
  assert.equal(within({ start: 0, stop: 1000 }, { start: null, stop: 1000 }), null);
  assert.deepEqual(within({ start: 5, stop: 9e9 }, { start: null, stop: null }), { start: 5, stop: 9e9 });
  assert.deepEqual(within({ start: 2000, stop: 3000 }, whole), { start: 2000, stop: 3000 });
});

test("a view about a step shows it among few others, and marks it", () => {
  const view = about({ x: "time", start: 1, stop: 9, follow: 100, stream: "1" }, 1000);
  assert.deepEqual(view, { x: "step", start: 975, stop: 1025, follow: null, at: 1000, stream: "1" });
});

test("what is gone to is in the middle, or as near to it as the first step allows", () => {
  assert.deepEqual(around(1000, 50), { start: 975, stop: 1025 });
  assert.deepEqual(around(3, 50), { start: 0, stop: 50 });
});
