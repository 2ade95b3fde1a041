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
    "1-a.own_2.f0",
    "  1-a.own_2.f0\n",
    "http://127.0.0.1:8267/login?code=1-a.own_2.f0",
    "ampmon is at https://hub.example/me/login?code=1-a.own_2.f0 (this link signs one browser in)",
    "https://hub.example/#/runs/7?x=time&code=1-a.own_2.f0",
    "Sign in at https://hub.example/login?code=1-a.own_2.f0.",
  ]) {
    assert.equal(loginKey(given), "1-a.own_2.f0");
  }
});
