// Starts the page: shows what the address asks for, and keeps it fresh.

import { AccountMenu, SignIn } from "./account.js";
import { format, parse } from "./address.js";
import { AlertsPage } from "./alerts.js";
import * as browser from "./browser.js";
import { Compare } from "./compare.js";
import { h, mark, say } from "./dom.js";
import { ago, shortened } from "./format.js";
import * as help from "./help.js";

import { commandOf } from "./keyboard.js";
import { List } from "./list.js";
import { Live } from "./live.js";
import { paced } from "./pace.js";
import * as plot from "./plot.js";
import { Run } from "./run.js";
import { Refused, signInFromAddress } from "./server.js";
import * as theme from "./theme.js";

const GONE =
  "This server has no such run. It may have been deleted, or the address may be incomplete. " +
  "A run that just started appears once its first steps arrive.";

/** The page of an invalid address or a missing run. It follows all runs, which shows whether the server answers. @returns {Page} */
function noPage() {
  return {
    title: "No such run",
    follows: [],
    element: h("article", {}, h("h1", {}, "No such run"), h("p", { class: "empty" }, GONE)),
    refresh: async () => {},
    look: ({ page }) => page === "nothing",
  };
}

// Nobody reads numbers that change more often. Charts do not wait for this.
const REFRESH_MS = 250;
// Events may be lost, and some changes send none: a run that falls silent, for example.
const POLL_MS = 10_000;
// Load the chart library early, but after the list.
const WARM_MS = 1000;
// A timer this late means that the machine slept.
const SLEPT_MS = 5000;

const content = byId("content");
const connection = byId("connection");
const state = byId("state");
// Outside the element that is read aloud, because it changes every second.
const age = byId("age");

/** @type {Page | null} */
let page = null;
let lastTick = Date.now();

const refresh = paced(update, REFRESH_MS);
const live = new Live({ onAdvance: takeEvents, onConnection: showConnection });
const signIn = new SignIn(connection, look);
const who = new AccountMenu(/** @type {HTMLButtonElement} */ (byId("who")));

/** @param {Advance[]} advances */
function takeEvents(advances) {
  if (!document.hidden) page?.takeEvents?.(advances);
  refresh();
}

async function update() {
  const shown = page;
  if (!shown || document.hidden) return;
  try {
    await shown.refresh();
    if (shown !== page) return;
    // A run that does not exist yet may appear: people open its page before the first batch.
    if (!shown.element.isConnected) content.replaceChildren(shown.element);
    document.title = `${shortened(shown.title, 60)} · ampmon`;
    sayConnection(live.connection);
  } catch (error) {
    if (!(error instanceof Refused)) live.checkStream();
    else if (shown === page && error.status === 404) showMissing();
    else if (shown === page) showFailure(error);
  }
}

function route() {
  const address = parse(location.hash);
  if (page?.look(address)) return;
  page?.close?.();
  page = open(address);
  content.replaceChildren(page.element);
  window.scrollTo(0, 0);
  live.follow(page.follows);
  refresh();
}

/** Open a page. Its late callbacks do nothing once the reader has left it. @type {(address: Address) => Page} */
function open(address) {
  /** @type {Page} */
  let opened;
  const whileShown = (/** @type {() => void} */ work) => {
    if (page === opened) work();
  };
  const onTrouble = () => live.checkStream();
  if (address.page === "run" || address.page === "compare") preload();
  if (address.page === "run") {
    const onView = (/** @type {View} */ view) => whileShown(() => go(format({ ...address, view })));
    const onDeleted = () => whileShown(() => go("#/"));
    opened = new Run(address.run, address.view, { onView, onTrouble, onDeleted });
  } else if (address.page === "compare") {
    const onView = (/** @type {string[]} */ runs, /** @type {View} */ view) => whileShown(() => go(format({ ...address, runs, view })));
    opened = new Compare(address.runs, address.view, { onView, onTrouble });
  } else if (address.page === "list") {
    opened = new List(address.filters, (filters, typed) => whileShown(() => go(format({ page: "list", filters }), typed)));
  } else {
    opened = address.page === "alerts" ? new AlertsPage() : noPage();
  }
  return opened;
}

/** Change the address and show it at once. The browser's event would come only after the charts have moved. A `typed`
 * search is not worth a history entry.
 * @param {string} hash @param {boolean} [typed] */
function go(hash, typed = false) {
  if (hash === location.hash) return;
  if (typed) history.replaceState(null, "", hash);
  else history.pushState(null, "", hash);
  route();
}

/** Load the chart library early. If that fails, each chart says so. */
function preload() {
  plot.load().catch(() => {});
}

function showMissing() {
  const { title, element } = noPage();
  content.replaceChildren(element);
  document.title = `${title} · ampmon`;
  sayConnection(live.connection);
}

/** @param {Error} error */
function showFailure(error) {
  mark(connection, "data-state", "refused");
  say(state, `The server could not answer: ${error.message}`);
  say(age, "");
}

/** @param {Connection} now */
function showConnection(now) {
  sayConnection(now);
  if (now.state !== "live") return;
  signIn.done();
  who.refresh().then(refresh, () => live.checkStream());
}

/** @param {Connection} now */
function sayConnection(now) {
  mark(connection, "data-state", now.state);
  say(state, connectionWords(now));
  const lost = now.state === "lost" ? (Date.now() - now.since) / 1000 : 0;
  say(age, lost < 2 ? "" : ` · ${ago(lost)}`);
}

/** @param {Connection} now */
function connectionWords({ state, why }) {
  if (state === "starting") return "";
  if (state === "live") return "Live";
  if (state === "signed out") return "Signed out";
  if (state === "refused") return `The server rejected the request: ${why}`;
  return "Connection lost; retrying";
}

function look() {
  if (document.hidden) return live.pause();
  live.resume();
  refresh();
}

/** Check the connection after the machine or its network was away. */
function reconnect() {
  if (document.hidden) return;
  look();
  live.checkStream();
}

function everySecond() {
  if (Date.now() - lastTick > SLEPT_MS) reconnect();
  lastTick = Date.now();
  if (live.connection.state !== "live") sayConnection(live.connection);
  if (!document.hidden) page?.tick?.();
}

/** Focus the content without following the link: the address holds the view after "#". @param {Event} event */
function skip(event) {
  event.preventDefault();
  content.focus();
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  const target = event.target instanceof Element ? event.target : null;
  const command = document.querySelector("dialog[open]") ? null : commandOf(event, target);
  if (command !== null && act(command)) event.preventDefault();
}

/** Run a command. Return false if nothing here handles it. @param {Command} command */
function act(command) {
  if (page?.act?.(command)) return true;
  if (command === "help") help.toggle();
  else if (command === "link") void browser.copyLink();
  else if (command === "theme") theme.toggle();
  else if (command === "list") location.hash = "#/";
  else if (command === "search") return search();
  else return false;
  return true;
}

/** Focus the first visible search field. */
function search() {
  const fields = content.querySelectorAll("input[type=search]");
  const field = [...fields].find((each) => each.checkVisibility());
  if (field instanceof HTMLInputElement) field.select();
  if (field instanceof HTMLInputElement) field.focus();
  return field !== undefined;
}

/** @param {string} id */
function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`no element: ${id}`);
  return element;
}

function recolour() {
  say(byId("theme"), theme.current() === "dark" ? "☾ Dark" : "☀ Light");
  page?.recolour?.();
}

async function start() {
  help.install(byId("tip"));
  browser.install();
  byId("theme").addEventListener("click", theme.toggle);
  byId("help").addEventListener("click", help.toggle);
  document.addEventListener("keydown", onKey);
  document.querySelector(".skip-link")?.addEventListener("click", skip);
  await Promise.all([theme.load(recolour), signInFromAddress()]);
  window.addEventListener("hashchange", route);
  document.addEventListener("visibilitychange", look);
  window.addEventListener("pagehide", () => live.pause());
  window.addEventListener("pageshow", look);
  window.addEventListener("online", reconnect);
  lastTick = Date.now();
  setInterval(everySecond, 1000);
  setInterval(refresh, POLL_MS);
  setTimeout(preload, WARM_MS);
  route();
}

await start();
