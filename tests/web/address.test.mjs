// The address bar holds the view, and nothing that it holds can break the page.

import assert from "node:assert/strict";
import { test } from "node:test";

import { format, parse, viewQuery } from "../../web/js/address.js";

const view = { x: "step", start: null, stop: null, stream: null };

test("an address without a run is the list", () => {
  for (const hash of ["", "#", "#/", "#/runs", "#/runs/", "#/else/x"]) assert.deepEqual(parse(hash), { page: "list" });
});

test("what is written is read back", () => {
  for (const part of [{}, { start: 0, stop: 9 }, { x: "time", start: 17e14, stop: 18e14 }, { x: "user" }, { stream: "a&b=ü" }]) {
    const address = { page: "run", run: "0190-x", view: { ...view, ...part } };
    assert.deepEqual(parse(format(address)), address);
  }
});

test("numbers that are none are no view", () => {
  const { view: read } = parse("#/runs/a?start=-1&stop=1e9&x=moon");
  assert.deepEqual(read, view);
});

test("a run's id is a name, not a path", () => {
  assert.equal(format({ page: "run", run: "../../x", view }), "#/runs/..%2F..%2Fx");
});

test("a figure's call names its axis", () => {
  assert.equal(viewQuery({ ...view, start: 5 }, true), "x=step&start=5");
});
