// What a chart says at a place along x: the words of each trace's point there, as its figure has them.

import assert from "node:assert/strict";
import { test } from "node:test";

import { placeWords, readAt } from "../../web/js/readout.js";

const line = { type: "scatter", mode: "lines", line: { color: "role:scale" } };
const held = { ...line, line: { shape: "hv", color: "role:scale" }, name: "a &lt;b&gt;", hovertemplate: "%{text}", x: [0, 10, 20], y: [1, NaN, 3], text: ["one", "", "three"] };
const figure = (data, layout = {}) => ({ data, layout: { meta: { title: "t" }, ...layout } });
const words = (trace, spot, layout) => readAt(figure([trace], layout), spot && { up: null, near: 1, ...spot }).map((each) => each.words);

test("a line that is held says what holds, and nothing where it breaks", () => {
  const whole = { ...held, y: [1, 2, 3] };
  assert.deepEqual(readAt(figure([whole]), { x: 9, up: null, near: 1 }), [{ words: "a <b> one", colour: "scale" }]);
  assert.deepEqual([words({ ...held, y: [1, NaN, 3] }, { x: 0 }), words({ ...held, y: [1, NaN, 3] }, { x: 5 })], [["a <b> one"], []]);
  assert.deepEqual([words(held, { x: 12 }), words(held, { x: 99 }), words(held, { x: -1 })], [[], ["a <b> three"], []]);
});

test("without a place the newest is said, and of single marks nothing", () => {
  assert.deepEqual(words({ ...held, y: [1, 2, NaN], text: ["one", "two", ""] }, null), ["a <b> two"]);
  assert.deepEqual(words({ ...held, mode: "markers" }, null), []);
});

test("a line between points says its nearest, with the number as the figure writes it", () => {
  const logged = { ...line, x: [0, 10], y: [0.1234567, 2000], customdata: [0, 10], hovertemplate: "%{y:.6g}, step %{customdata:,d}<extra></extra>" };
  assert.deepEqual([words(logged, { x: 4 }), words(logged, { x: 6 })], [["0.123457, step 0"], ["2000, step 10"]]);
  assert.deepEqual(words({ ...logged, meta: { exact: true } }, { x: 6 }), []);
});

test("a mark is said within a few pixels of it, a bar over its width", () => {
  const mark = { type: "scatter", mode: "markers", x: [10], y: [0], text: ["step 10: back-off<br>2<sup>-3</sup>"], hoverinfo: "text" };
  assert.deepEqual([words(mark, { x: 11 }), words(mark, { x: 12 })], [["step 10: back-off, 2⁻³"], []]);
  const coloured = { type: "bar", x: [10], y: [1], width: 8, text: ["3"], marker: { color: ["role:skip"] } };
  assert.deepEqual(readAt(figure([coloured]), { x: 10, up: null, near: 1 }), [{ words: "3", colour: "" }]);
  const bar = { type: "bar", x: [10], y: [1], width: 8, text: ["1 of 8"], hoverinfo: "text" };
  assert.deepEqual([words(bar, { x: 14 }), words(bar, { x: 15 })], [["1 of 8"], []]);
});

test("a heatmap says the cell that is pointed at, by height or by row, and nothing elsewhere", () => {
  const cells = { type: "heatmap", x: [0, 10], z: [[0, 0.5], [0.25, NaN]], hovertemplate: "%{y}<br>step %{x:,d}: %{z:.3~%} zero<extra></extra>" };
  const rows = { ...cells, y: ["top", "bottom"] };
  assert.deepEqual([words(rows, { x: 9, up: 0.9 }), words(rows, { x: 1, up: 0.1 })], [["top, 50\u202f% zero"], ["bottom, 25\u202f% zero"]]);
  assert.deepEqual([words(rows, { x: 9, up: 0.1 }), words(rows, { x: 9 })], [[], []]);
  assert.deepEqual(words({ ...cells, y: [4, 5] }, { x: 0, up: 0.95 }, { yaxis: { range: [0, 5.5] } }), ["5, 25\u202f% zero"]);
});

test("a place is said as its axis does", () => {
  const at = (text, x) => placeWords(figure([], { xaxis: { unifiedhovertitle: { text } } }), x);
  assert.equal(at("step %{x:,d}", 12345), "step 12\u202f345");
  assert.equal(at("%{x|%X} UTC+2", Date.UTC(2026, 0, 1, 9, 5, 7)), "09:05:07 UTC+2");
  assert.equal(at("%{x|%Y-%m-%d %X} UTC", Date.UTC(2026, 0, 1, 9, 5, 7)), "2026-01-01 09:05:07 UTC");
  const since = [0, 2512, -40, 93600000].map((ms) => at("%{x|elapsed} since the start", ms));
  assert.deepEqual(since, ["0\u202fs", "2.51\u202fs", "−0.04\u202fs", "1\u202fd 2\u202fh"].map((each) => `${each} since the start`));
  assert.equal(at("logged step %{x:,.4~f}", 2.5), "logged step 2.5");
  assert.equal(at("at 2<sup>%{x:d}</sup>", -8), "at 2⁻⁸");
  assert.deepEqual(words({ ...line, x: [10], y: [9.97], text: ["1 000 ≈ 2<sup>9.97</sup>"], hovertemplate: "%{text}<extra></extra>" }, { x: 10 }), ["1 000 ≈ 2⁹·⁹⁷"]);
});
