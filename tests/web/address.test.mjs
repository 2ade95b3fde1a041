// The address bar holds the view, and nothing that it holds can break the page.

import assert from "node:assert/strict";
import { test } from "node:test";

import { figureQuery, format, parse, wholeView } from "../../web/js/address.js";

const view = wholeView();
const RUN = "01900000-0000-7000-8000-000000000000";
const OTHER = "d9428888-122b-41e1-b85c-61c46d4a8f11";

test("an address without a run is the list", () => {
  for (const hash of ["", "#", "#/", "#/runs", "#/runs/", "#/else/x"]) assert.deepEqual(parse(hash), { page: "list", filters: {} });
});

test("what is written is read back", () => {
  for (const part of [{}, { start: 0, stop: 9 }, { x: "time", start: 17e14, stop: 18e14 }, { x: "user" }, { stream: "a&b=ü" }, { rank: "3", parameter: "a.b c", follow: 200, at: 7 }, { choices: { name: "<b>&", statistic: "norm" } }]) {
    const address = { page: "run", run: RUN, view: { ...view, ...part } };
    assert.deepEqual(parse(format(address)), address);
  }
});

test("numbers that are none are no view", () => {
  const { view: read } = parse(`#/runs/${RUN}?start=-1&stop=1e9&x=moon`);
  assert.deepEqual(read, view);
});

test("a run's id is a name, not a path", () => {
  assert.equal(format({ page: "run", run: "../../x", view }), "#/runs/..%2F..%2Fx");
});

test("filters and compared runs are read back too", () => {
  for (const address of [
    { page: "list", filters: { search: "a&b", status: "running" } },
    { page: "compare", runs: [RUN, OTHER], view: { ...view, start: 3, stop: 9 } },
  ]) assert.deepEqual(parse(format(address)), address);
});

test("alerts have an address of their own", () => {
  for (const hash of ["#/alerts", "#/alerts?x=1"]) assert.deepEqual(parse(hash), { page: "alerts" });
});

test("an address with what is no run's id is of nothing", () => {
  for (const id of ["abc", "%zz", `${RUN}0`, RUN.slice(0, -1), "..%2F..", "%"]) {
    for (const hash of [`#/runs/${id}`, `#/runs/${id}?x=time`, `#/compare?runs=${id}`, `#/compare?runs=${RUN},${id}`]) {
      assert.deepEqual(parse(hash), { page: "nothing" }, hash);
    }
  }
  assert.deepEqual(parse("#/compare").runs, []);
});

test("a figure's call names its axis, and the choices that it knows", () => {
  const chosen = { ...view, start: 5, rank: "1", parameter: "a", choices: { statistic: "norm", name: "loss" } };
  assert.equal(String(figureQuery(chosen)), "x=step&start=5");
  assert.equal(String(figureQuery(chosen, ["statistic", "rank", "parameter"])), "x=step&start=5&statistic=norm&rank=1&parameter=a");
});
