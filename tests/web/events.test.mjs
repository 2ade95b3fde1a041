import assert from "node:assert/strict";
import { test } from "node:test";

import { reader } from "../../web/js/live.js";
import { loginKey } from "../../web/js/server.js";

test("events are read however the stream is cut", () => {
  const stream = ': nothing new\n\nevent: advance\ndata: {"run": "a"}\n\ndata: one\r\ndata:two\r\n\r\nevent: empty\n\nevent: adv';
  const whole = [
    { name: "advance", data: '{"run": "a"}' },
    { name: "message", data: "one\ntwo" },
  ];
  assert.deepEqual(reader()(stream), whole);
  const read = reader();
  assert.deepEqual([...stream].flatMap((letter) => read(letter)), whole);
});

test("a code is found in whatever a reader pastes", () => {
  for (const given of [
    "a-code_1",
    "  a-code_1\n",
    "http://127.0.0.1:8267/login?code=a-code_1",
    "ampmon is at https://hub.example/me/login?code=a-code_1 (this link signs one browser in)",
    "https://hub.example/#/runs/7?x=time&code=a-code_1",
  ]) {
    assert.equal(loginKey(given), "a-code_1");
  }
});
