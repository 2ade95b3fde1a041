// Numbers in words, held to the same golden file as the server's own.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import * as words from "../../web/js/format.js";

// Only the server has shares with their errors, scales and measures.
const { within, power_of_two, measure, ...golden } = JSON.parse(readFileSync(new URL("./words.golden.json", import.meta.url), "utf8"));

for (const [name, cases] of Object.entries(golden)) {
  test(`${name} says what the golden file says`, () => {
    for (const [given, said] of cases) assert.equal(words[name](...[given].flat()), said);
  });
}

test("a share is never rounded to none or all", () => {
  for (const share of [1e-300, 1e-9, 1 - 1e-9, 1 - 2 ** -53]) {
    assert.notEqual(words.percent(share), words.percent(0));
    assert.notEqual(words.percent(share), words.percent(1));
  }
});

test("what is not known is a dash", () => {
  assert.equal(words.percent(null), "–");
});

test("a stretch of time has its two largest units", () => {
  assert.equal(words.duration(0), "0\u202fs");
  assert.equal(words.duration(59.9), "59\u202fs");
  assert.equal(words.duration(200), "3\u202fmin 20\u202fs");
  assert.equal(words.duration(7200), "2\u202fh");
  assert.equal(words.duration(90061), "1\u202fd 1\u202fh");
});

test("an age is one unit, and now is now", () => {
  assert.equal(words.ago(0.4), "now");
  assert.equal(words.ago(-3), "now");
  assert.equal(words.ago(125), "2\u202fmin ago");
});

test("a time is on the reader's clock, and names its zone", () => {
  const moment = words.moment(1_700_000_000_000_000, "en-GB", "Europe/Paris");
  assert.match(moment, /^14 Nov 2023,? (at )?23:13:20 (CET|GMT\+1)$/);
});

test("a long name keeps both ends where there is little room, and one that is read from the right turns nothing else", () => {
  assert.equal(words.shortened("short", 60), "short");
  assert.equal(words.shortened("𝔁".repeat(60), 60), "𝔁".repeat(60));
  assert.equal(words.shortened("𝔁".repeat(61) + "\n8", 60), `${"𝔁".repeat(30)}…${"𝔁".repeat(27)}\n8`);
  assert.equal(words.shortened("e\u0301".repeat(9), 8), `${"e\u0301".repeat(2)}…${"e\u0301"}`);
  assert.equal(words.shortened("👩🏽‍🚀".repeat(5), 12), "👩🏽‍🚀…👩🏽‍🚀");
  assert.equal(words.shortened("aa🇩🇪bbb🇩🇪aa", 6), "aa…aa");
  assert.equal(words.shortened("a🏴󠁧󠁢󠁳󠁣󠁴󠁿bbb🏴󠁧󠁢󠁳󠁣󠁴󠁿a", 8), "a…a");
  for (const letter of ["น้ำ", "한".normalize("NFD")]) assert.equal(words.shortened(letter.repeat(9), 8), `${letter}…${letter}`);
  assert.equal(words.isolated("تدريب \u202e"), "\u2068تدريب \u202e\u2069");
  assert.equal(words.isolated("run"), "run");
});
