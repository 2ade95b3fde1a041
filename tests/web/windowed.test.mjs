// Which rows of a long list are on the page.

import assert from "node:assert/strict";
import { test } from "node:test";

import { pagesOf, rowsOn } from "../../web/js/range.js";

const screen = { top: 200, height: 1000, row: 40, total: 10_000 };

test("at the top are the rows on the screen, and a few more below", () => {
  assert.deepEqual(rowsOn(screen), [0, 28]);
});

test("in the middle a few more on both sides", () => {
  assert.deepEqual(rowsOn({ ...screen, top: -200_000 }), [4992, 5033]);
});

test("there are no rows but those of the list", () => {
  assert.deepEqual(rowsOn({ ...screen, total: 3 }), [0, 3]);
  assert.deepEqual(rowsOn({ ...screen, top: -900_000 }), [10_000, 10_000]);
  assert.deepEqual(rowsOn({ ...screen, total: 0 }), [0, 0]);
});

test("pages are those that hold any of the rows, the first where there is none", () => {
  assert.deepEqual(pagesOf(0, 28, 50), [0, 1]);
  assert.deepEqual(pagesOf(4992, 5033, 50), [99, 101]);
  assert.deepEqual(pagesOf(0, 100, 50), [0, 2]);
  assert.deepEqual(pagesOf(0, 0, 50), [0, 1]);
});
