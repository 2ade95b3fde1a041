// Work that is asked for often is done seldom, and never misses the last call.

import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

import { paced } from "../../web/js/pace.js";

let now = 0;

beforeEach(() => {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] });
  mock.method(performance, "now", () => now);
});

/** Lets so many milliseconds pass, one by one, each with all that comes of it. @param {number} ms */
async function pass(ms) {
  for (let each = 0; each < ms; each += 1) {
    now += 1;
    mock.timers.tick(1);
    await new Promise((done) => setImmediate(done));
  }
}

test("a burst of calls is one run now and one later", async () => {
  let runs = 0;
  const trigger = paced(async () => void (runs += 1), 40);
  trigger();
  await pass(10);
  for (let i = 0; i < 50; i += 1) trigger();
  assert.equal(runs, 1);
  await pass(80);
  assert.equal(runs, 2);
});

test("no two runs overlap, and a call during one is followed by another", async () => {
  let running = 0;
  let most = 0;
  let runs = 0;
  const trigger = paced(async () => {
    runs += 1;
    most = Math.max(most, (running += 1));
    await new Promise((done) => setTimeout(done, 30));
    running -= 1;
  }, 1);
  trigger();
  await pass(10);
  trigger();
  await pass(100);
  assert.deepEqual([runs, most], [2, 1]);
});

test("what is asked for now does not wait for its time, but for a run that is under way", async () => {
  let runs = 0;
  const trigger = paced(async () => {
    runs += 1;
    await new Promise((done) => setTimeout(done, 20));
  }, 1000);
  trigger();
  await pass(10);
  trigger.now();
  assert.equal(runs, 1);
  await pass(15);
  assert.equal(runs, 2);
  await pass(30);
  trigger();
  await pass(100);
  assert.equal(runs, 2);
  trigger.now();
  await pass(2);
  assert.equal(runs, 3);
});

test("once stopped it stays still", async () => {
  let runs = 0;
  const trigger = paced(async () => void (runs += 1), 10);
  trigger();
  trigger.stop();
  trigger();
  await pass(40);
  assert.equal(runs, 0);
});
