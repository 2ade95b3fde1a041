// The shares that a format loses at a scale: a case counted by hand, and the server's numbers of the known run.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { lostAt } from "../../web/js/what-if.js";
import { percent } from "../../web/js/format.js";

const golden = (name) => JSON.parse(readFileSync(new URL(`../figures/golden/${name}.json`, import.meta.url), "utf-8"));
const FP16 = { overflow: 16, normal: -14, smallest: -24 };

test("a scale moves elements over the ends of a format", () => {
  // Of 10 elements one is zero; 1 has the exponent -26, 2 have -25, 6 have 0.
  const held = { ...FP16, first: -26, counts: [1, 2, ...Array(24).fill(0), 6], elements: 10 };
  assert.deepEqual(lostAt(held, 0), { overflow: 0, subnormal: 0, below: 0.3 });
  assert.deepEqual(lostAt(held, 1), { overflow: 0, subnormal: 0.2, below: 0.1 });
  assert.deepEqual(lostAt(held, 10), { overflow: 0, subnormal: 0.3, below: 0 });
  assert.deepEqual(lostAt(held, 11), { overflow: 0, subnormal: 0.1, below: 0 });
  assert.deepEqual(lostAt(held, 12), { overflow: 0, subnormal: 0, below: 0 });
  assert.deepEqual(lostAt(held, 16), { overflow: 0.6, subnormal: 0, below: 0 });
  assert.deepEqual(lostAt({ ...held, overflow: 9, normal: -6, smallest: -9 }, 17), { overflow: 0.6, subnormal: 0.3, below: 0 });
});

test("at the recorded scale the share is the server's", () => {
  const { window, slider } = golden("exponents").layout.meta;
  const { subnormal } = lostAt(window, slider.value);
  assert.equal(subnormal, 0.05);
  assert.ok(golden("underflow").layout.meta.caption.includes(`${percent(subnormal)} subnormal`));
});

// The slider counts all samples that are drawn, and the what-if chart those at the newest scale.
test("at every scale the subnormal share is about within the server's bounds", () => {
  const { window } = golden("exponents").layout.meta;
  const { data } = golden("whatif");
  const most = data.findIndex(({ name }) => name === "subnormal");
  data[most].x.f8.forEach((level, index) => {
    const [low, high] = [data[most - 1], data[most]].map(({ y }) => 10 ** y.f4[index]);
    const { subnormal } = lostAt(window, level);
    assert.ok((low === 1e-6 || low <= 1.02 * subnormal) && subnormal <= 1.02 * high, `${level}: ${low} ${subnormal} ${high}`);
  });
});
