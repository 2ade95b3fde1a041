// The theme's colours in the place of roles.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { resolve } from "../../web/js/roles.js";

const themes = JSON.parse(readFileSync(new URL("../../web/roles.json", import.meta.url), "utf8"));

test("roles become colours wherever a colour stands, and nothing else changes", () => {
  const figure = {
    data: [{ line: { color: "role:scale" }, text: ["a", "b"], x: { dtype: "f8", bdata: "AAAA" } }],
    layout: { meta: { title: "t" }, coloraxis: { colorscale: "role:counts" }, dragmode: false, n: null },
  };
  const before = structuredClone(figure);
  const drawn = resolve(figure, themes.dark);
  assert.equal(drawn.data[0].line.color, themes.dark.scale);
  assert.deepEqual(drawn.layout.coloraxis.colorscale, themes.dark.counts);
  assert.deepEqual(drawn.data[0].x, figure.data[0].x);
  assert.deepEqual(drawn.layout.meta, figure.layout.meta);
  assert.deepEqual(figure, before);
});

test("a name that begins like a role stays a name", () => {
  const named = "role:attacker";
  const figure = {
    data: [{ name: named, y: [named], text: [[named]], marker: { color: ["role:zero", "role:skip"] } }],
    layout: { meta: { title: named, opens: [["parameter", named]] } },
  };
  const drawn = resolve(figure, themes.light);
  assert.deepEqual(drawn, { ...figure, data: [{ ...figure.data[0], marker: { color: [themes.light.zero, themes.light.skip] } }] });
});

test("an unknown role is an error, not some colour", () => {
  assert.throws(() => resolve({ data: [{ color: "role:mauve" }], layout: { meta: { title: "" } } }, themes.light), /mauve/);
});
