// Work that is asked for often is done seldom, and never misses the last call.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { paced } from "../../web/js/pace.js";

test("a burst of calls is one run now and one later", async () => {
  let runs = 0;
  const trigger = paced(async () => void (runs += 1), 40);
  trigger();
  await sleep(10);
  for (let i = 0; i < 50; i += 1) trigger();
  assert.equal(runs, 1);
  await sleep(80);
  assert.equal(runs, 2);
});

test("no two runs overlap, and a call during one is followed by another", async () => {
  let running = 0;
  let most = 0;
  let runs = 0;
  const trigger = paced(async () => {
    runs += 1;
    most = Math.max(most, (running += 1));
    await sleep(30);
    running -= 1;
  }, 1);
  trigger();
  await sleep(10);
  trigger();
  await sleep(100);
  assert.deepEqual([runs, most], [2, 1]);
});

test("once stopped it stays still", async () => {
  let runs = 0;
  const trigger = paced(async () => void (runs += 1), 10);
  trigger();
  trigger.stop();
  trigger();
  await sleep(40);
  assert.equal(runs, 0);
});
