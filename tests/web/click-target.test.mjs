// A click on a row of a chart opens what the server said that it does.

import assert from "node:assert/strict";
import { test } from "node:test";

import { wholeView } from "../../web/js/address.js";
import { opened } from "../../web/js/address.js";

const view = { ...wholeView(), choices: { statistic: "norm" } };
const opens = [["parameter", "<b>"], ["search", "h.1.*"]];
const figure = (data) => ({ data: [data], layout: { meta: { title: "", opens } } });

test("a row by its name opens a parameter, one of several a search", () => {
  const heatmap = figure({ y: ["&lt;b&gt;", "h.1"] });
  assert.deepEqual(opened(heatmap, { y: "&lt;b&gt;" }, view), { ...view, parameter: "<b>" });
  assert.deepEqual(opened(heatmap, { y: "h.1" }, view), { ...view, choices: { statistic: "norm", search: "h.1.*" } });
});

test("a row by its height opens as well", () => {
  const bars = figure({ y: { dtype: "f8", bdata: "" } });
  assert.deepEqual(opened(bars, { y: -1 }, view)?.choices["search"], "h.1.*");
});

test("what is no row opens nothing", () => {
  for (const [chart, y] of [[figure({ y: ["a"] }), "b"], [figure({}), 7], [null, 0], [{ data: [{}], layout: { meta: {} } }, 0]]) {
    assert.equal(opened(chart, { y }, view), null);
  }
});
