// What each key asks for, and which are none of the page's business.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { commandOf } from "../../web/js/keyboard.js";

// The rows of the dialog of keys, as the browser finds them by a key.
const shell = readFileSync(new URL("../../web/index.html", import.meta.url), "utf8");
const ROWS = [...shell.matchAll(/data-keys="(.*?)" data-command="(.*?)"><dt><kbd>(.*?)<.*<dd>(.*)<\/dd>/g)].map(
  ([, keys, command, cap, words]) => ({ keys: keys.split(" "), command, cap, words }),
);
globalThis.CSS = { escape: (key) => key };
globalThis.document.getElementById = () => ({
  querySelector: (selector) => {
    const row = ROWS.find(({ keys }) => keys.some((key) => selector === `[data-keys~="${key}"]`));
    return row ? { dataset: { command: row.command } } : null;
  },
});

const pressed = (key, more = {}) => ({
  key, code: "", ctrlKey: false, metaKey: false, altKey: false, isComposing: false, defaultPrevented: false, ...more,
});
const inside = (kind) => ({ closest: (selector) => (selector.split(", ").includes(kind) ? {} : null) });
const nowhere = inside("body");

test("each key of the help sheet does what it says, and no key does two things", () => {
  assert.equal(ROWS.length, 14);
  const keys = ROWS.flatMap((row) => row.keys.map((key) => [key, row.command]));
  for (const [key, command] of keys) assert.equal(commandOf(pressed(key), nowhere), command);
  assert.equal(new Set(keys.map(([key]) => key)).size, keys.length);
});

test("the browser's shortcuts, keys that another took, and half-composed letters are left alone", () => {
  for (const held of ["ctrlKey", "metaKey", "altKey", "isComposing", "defaultPrevented"]) {
    assert.equal(commandOf(pressed("f", { [held]: true }), nowhere), null);
  }
  for (const key of [" ", "Enter", "Tab", "F5", "q", "Home"]) assert.equal(commandOf(pressed(key), nowhere), null);
});

test("what is typed into a field is typed into it; arrows move what is scrolled by them", () => {
  for (const field of ["input", "select", "textarea"]) assert.equal(commandOf(pressed("f"), inside(field)), null);
  for (const scrolled of ["pre", ".sideways"]) assert.equal(commandOf(pressed("ArrowLeft"), inside(scrolled)), null);
  assert.equal(commandOf(pressed("f"), inside("pre")), "follow");
});

test("a keyboard of another script has the same keys", () => {
  assert.equal(commandOf(pressed("а", { code: "KeyF" }), nowhere), "follow");
  assert.equal(commandOf(pressed("а", { code: "KeyQ" }), nowhere), null);
});

test("the reference names each key with what it does", () => {
  const reference = readFileSync(new URL("../../docs/reading-the-page.md", import.meta.url), "utf8");
  for (const { cap, words } of ROWS) {
    const row = reference.split("\n").find((line) => line.endsWith(`| ${words} |`)) ?? "";
    assert.ok(row.includes(`\`${cap.replace("−", "-")}\``), words);
  }
});
