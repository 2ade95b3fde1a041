// What is saved of a chart: names of files that any system takes, and data that a spreadsheet reads and does not run.

import assert from "node:assert/strict";
import { test } from "node:test";

import { csvOf, fileName, framed, unpacked } from "../../web/js/saving.js";

const packed = (array, dtype, shape) => ({ dtype, bdata: Buffer.from(array.buffer).toString("base64"), ...(shape && { shape }) });
const layout = (more) => ({ meta: { title: "Loss scale", caption: "2¹⁵ now." }, xaxis: { title: { text: "step" } }, ...more });

test("a file's name has no more than letters, digits, dots and dashes, in any script", () => {
  assert.equal(fileName(["résumé/../run <b>", "scale", "step", 3, 9], "png"), "résumé-..-run-b-scale-step-3-9.png");
  assert.equal(fileName(["..", "///"], "svg"), "chart.svg");
  assert.equal(fileName(["تدريب", "scale"], "csv"), "تدريب-scale.csv");
  assert.ok(fileName(["x".repeat(200), "scale"], "csv").length < 100);
});

test("a point is a row, with its packed numbers as they are; a gap is empty", () => {
  const trace = { name: "loss scale", x: packed(Int16Array.of(0, 300), "i2"), y: packed(Float64Array.of(0.1, NaN), "f8"), text: ["1", "2"] };
  assert.equal(csvOf({ data: [trace], layout: layout() }), "series,step,y,value,words\r\nloss scale,0,0.1,,1\r\nloss scale,300,,,2\r\n");
});

test("each cell of a heatmap is a row, of its column and its level", () => {
  const trace = { name: "n", x: [5, 6], y: ["a", "b"], z: packed(Float32Array.of(1, 2, 3, 4), "f4", "2,2") };
  const rows = csvOf({ data: [trace], layout: layout() }).split("\r\n").slice(1, -1);
  assert.deepEqual(rows, ["n,5,a,1,", "n,6,a,2,", "n,5,b,3,", "n,6,b,4,"]);
});

test("an infinity of a heatmap has words and no value: what it is drawn at was not measured", () => {
  const trace = { name: "n", x: [5, 6], y: ["a", "b"], z: packed(Float32Array.of(9999, 2, -9999, NaN), "f4", "2,2") };
  const rows = (text) => csvOf({ data: [{ ...trace, ...text }], layout: layout() }).split("\r\n").slice(1, -1);
  assert.deepEqual(rows({ text: [["∞", "10^2.00"], ["0", ""]] }), ["n,5,a,,∞", "n,6,a,2,10^2.00", "n,5,b,,0", "n,6,b,,"]);
  assert.equal(rows({})[0], "n,5,a,9999,");
});

test("along an axis of logarithms, the values are given; a share at its lower end is 0, and a scale at its ends 0 or inf", () => {
  const meta = { title: "", bases: { x: 2, y: 2, y2: 10, y3: 2 } };
  const axes = { xaxis: {}, yaxis: { range: [-1, 30] }, yaxis2: { range: [-5, 0.1] } };
  const data = [
    { name: "scale", x: [3], y: [Math.log2(1000)] },
    { name: "scale", x: [3, 4, 5, 6], y: [16, 24, NaN, -0.5] },
    { name: "share", x: [0, 1], y: [-5, Math.log10(0.25)], yaxis: "y2" },
    { name: "dead", x: [0, 1], y: [-128, 128], yaxis: "y3" },
  ];
  const rows = csvOf({ data, layout: { ...layout(axes), meta } }).split("\r\n").slice(1, -1);
  assert.deepEqual(rows, ["scale,8,1000,,", "scale,8,65536,,", "scale,16,16777216,,", "scale,32,,,", "scale,64,0.7071068,,", "share,1,0,,", "share,2,0.25,,", "dead,1,0,,", "dead,2,inf,,"]);
});

test("times are written in full, in UTC", () => {
  const dated = layout({ xaxis: { title: { text: "time (UTC)" }, type: "date" } });
  const csv = csvOf({ data: [{ name: "s", x: packed(Float64Array.of(1_700_000_000_123), "f8"), y: [1] }], layout: dated });
  assert.match(csv, /2023-11-14T22:13:20\.123Z/);
  const same = csvOf({ data: [{ name: "s", x: [1_700_000_000_123], y: [1] }], layout: dated });
  assert.match(same, /^series,time \(UTC\),.*\r\ns,2023-11-14T22:13:20\.123Z/);
});

test("what a name would run in a spreadsheet is text there, and quotes hold", () => {
  const csv = csvOf({ data: [{ name: '=HYPERLINK("x")', x: [1], y: [-2] }], layout: layout() });
  assert.equal(csv.split("\r\n")[1], `"'=HYPERLINK(""x"")",1,-2,,`);
  for (const name of [";=1+1", "loss;=1+1", 'a;"=1+1', "a;b; @x", "a\t+1", "＝1+1", " =1"]) {
    const made = csvOf({ data: [{ name, x: [1], y: [-2] }], layout: layout() });
    for (const piece of made.split("\r\n")[1].split(/[;\t]/)) assert.doesNotMatch(piece, /^["\s]*[=+\-@＝]/, name);
  }
});

test("an unknown type of numbers is an error, and not an empty column", () => {
  assert.throws(() => unpacked({ dtype: "f2", bdata: "" }), /f2/);
});

test("a picture has room for its words above what was drawn, and a name's markup stays text in it", () => {
  const figure = { data: [], layout: layout({ height: 256, margin: { l: 64, t: 8 } }) };
  const { layout: made } = framed(figure, "<b>run & co", "#fff", 800);
  assert.match(made.title.text, /^<b>Loss scale<\/b> · &lt;b&gt;run &amp; co<br>.*2¹⁵ now/);
  assert.deepEqual([made.height, made.margin, made.width, made.paper_bgcolor], [308, { l: 64, t: 60 }, 800, "#fff"]);
  assert.equal(figure.layout.height, 256);
});
