// What the page says of an alert.

import assert from "node:assert/strict";
import { test } from "node:test";

import { stateWords, failuresOf, wordOf } from "../../web/js/alerts.js";

const now = Date.now() * 1000;
const alert = { rule: "silent", state: "firing", severity: "warning", title: "", since: now, fired: now, resolved: null, acknowledged: null, acknowledged_by: null, mute: null, deliveries: [] };
const sent = (target) => ({ target, sent: now, due: null, trouble: null });

test("the targets that got an alert are named, or that none did", () => {
  assert.match(stateWords({ ...alert, deliveries: [sent("phone"), sent("mail"), sent("chat")] }), /^firing since .*, sent to phone, mail and chat\.$/);
  assert.match(stateWords(alert), /not sent yet\.$/);
  assert.match(stateWords({ ...alert, mute: { until: null } }), /^firing since [^,]*, muted\.$/);
  assert.match(stateWords({ ...alert, acknowledged: now, acknowledged_by: "ada" }), /acknowledged by ada\.$/);
  assert.match(stateWords({ ...alert, state: "pending" }), /^pending since .*, sent if it lasts\.$/);
  assert.match(stateWords({ ...alert, state: "resolved", resolved: now }), /^resolved at .*, fired at /);
});

test("each target that did not get an alert is named, with the reason and the next attempt", () => {
  const failing = { target: "phone", sent: null, due: now, trouble: "it could not be reached" };
  assert.match(failuresOf([sent("mail"), failing])[0], /^Not delivered to phone: it could not be reached; next attempt: /);
  assert.match(failuresOf([{ ...failing, due: null }])[0], /; next attempt: none \(gave up\)\.$/);
  assert.deepEqual(failuresOf([sent("mail")]), []);
});

test("a closed finding says in a word how its alert does", () => {
  assert.equal(wordOf(null), "");
  assert.equal(wordOf(alert), "firing");
  assert.equal(wordOf({ ...alert, state: "resolved" }), "");
  assert.equal(wordOf({ ...alert, acknowledged: now }), "acknowledged");
  assert.equal(wordOf({ ...alert, acknowledged: now, mute: { until: null } }), "muted");
});
