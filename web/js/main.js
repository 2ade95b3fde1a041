// Starts the page: shows what the address asks for, and keeps it fresh.

import { installSignIn, showAccount } from "./account.js";
import { format, parse } from "./address.js";
import { AlertsPage } from "./alerts.js";
import { copyLink, loadTheme, theme, toggleTheme } from "./browser.js";
import { Compare } from "./compare.js";
import { byId, copyOf, mark, say } from "./dom.js";
import { ago, isolated, shortened } from "./format.js";
import { commandOf, installTips } from "./keyboard.js";
import { List } from "./list.js";
import { Live } from "./live.js";
import { paced } from "./pace.js";
import * as plot from "./plot.js";
import { Run } from "./run.js";
import { refusalOf, Refused, signInFromAddress } from "./server.js";

// Nobody reads numbers that change more often. Charts do not wait for this.
const REFRESH_MS = 250;
// Events may be lost, and some changes send none: a run that falls silent, for example.
const POLL_MS = 10_000;
// Load the chart library early, but after the list.
const WARM_MS = 1000;
// A timer this late means that the machine slept.
const SLEPT_MS = 5000;
// Browsers limit how often a page may change its history.
const SCROLLED_MS = 100;
// For so long a page that the reader returns to may grow before it stays where it is.
const RETURN_MS = 3000;

/** The page of an invalid address or a missing run. It follows all runs, which shows whether the server answers. @type {Page} */
const missing = {
  title: "No such run",
  element: copyOf("missing"),
  refresh: async () => {},
  look: ({ page }) => page === "nothing",
};

const content = byId("content");
const connection = byId("connection");

/** @type {Page | null} */
let page = null;
/** Kept while another page is open, with its rows and the selected ones. @type {List | null} */
let list = null;
let lastTick = Date.now();
/** Where the reader was at this entry of the history, until when to scroll back there, how far that went, at what height. */
let [place, until, reached, height] = [0, 0, 0, 0];
/** What had the focus when another page was opened, until that has its title. @type {Element | null} */
let left = null;
/** The addresses, without their views, of the page that is shown and of the one before. */
let [here, before] = ["", ""];
/** Ends the wait for an answer to the page that is left: it may be long. */
let leave = () => {};
/** @type {ReturnType<typeof setTimeout> | undefined} */
let scrolled;
/** The print that was asked for. In a frame, the browser prints the page around it. @type {Promise<void> | null} */
let printing = null;

const refresh = paced(update, REFRESH_MS);
const live = new Live({ onAdvance: takeEvents, onConnection: showConnection });
const signedIn = installSignIn(look);

/** @param {Advance[]} advances */
function takeEvents(advances) {
  if (!document.hidden) page?.takeEvents?.(advances);
  refresh();
}

async function update() {
  const shown = page;
  if (!shown || document.hidden) return;
  try {
    await Promise.race([shown.refresh(), new Promise((resolve) => (leave = () => resolve(null)))]);
    if (shown !== page) return;
    // A run that does not exist yet may appear: people open its page before the first batch.
    show(shown);
  } catch (error) {
    if (!(error instanceof Refused)) live.checkStream();
    else if (shown === page && error.status === 404) show(missing);
    else if (shown === page) sayConnection("refused", refusalOf(error));
  }
}

/** @param {Page} shown */
function show({ title, element }) {
  if (!element.isConnected) content.replaceChildren(element);
  document.title = `${isolated(shortened(title, 60))} · ampmon`;
  sayState(live.connection);
  // A screen reader says what has the focus. A reader who moved it meanwhile keeps it. After Back, it is on the run again.
  if (left === document.activeElement) {
    const run = [...element.querySelectorAll("a")].find(({ hash }) => hash === before && hash.startsWith("#/runs/"));
    (run ?? element.querySelector("h1"))?.focus({ preventScroll: true });
  }
  left = null;
}

function route() {
  const address = parse(location.hash);
  clearTimeout(scrolled);
  place = history.state ?? 0;
  until = place && performance.now() + RETURN_MS;
  if (page?.look(address)) return scrollToPlace();
  const first = page === null;
  [before, here] = [here, location.hash.split("?")[0] ?? ""];
  leave();
  page?.close?.();
  // Browser buttons work while a dialog is open. Its subject is on the page that is left.
  for (const dialog of document.querySelectorAll("dialog.asking")) dialog.remove();
  page = open(address);
  show(page);
  // A first page in a frame leaves the focus to the page around it.
  left = first && window.parent !== window ? null : document.activeElement;
  if (page === list) show(page);
  window.scrollTo(0, 0);
  scrollToPlace();
  live.follow(page.follows ?? []);
  refresh();
}

/** Open a page. Its late callbacks do nothing once the reader has left it. @type {(address: Address) => Page} */
function open(address) {
  /** @type {Host} */
  const host = {
    go: (next, typed) => page === opened && go(format(next), typed),
    onTrouble: () => live.checkStream(),
    onDeleted: (run) => {
      list?.actions.choose(run, false);
      host.go({ page: "list", filters: {} });
    },
    refresh,
  };
  if (address.page === "run" || address.page === "compare") preload();
  const opened = pageOf(address, host);
  return opened;
}

/** @type {(address: Address, host: Host) => Page} */
function pageOf(address, host) {
  if (address.page === "run") return new Run(address, host);
  if (address.page === "compare") return new Compare(address, host);
  if (address.page === "alerts") return new AlertsPage();
  if (address.page !== "list") return missing;
  list ??= new List(host);
  list.look(address);
  return list;
}

/** Change the address and show it at once. The browser's event would come only after the charts have moved. A `typed`
 * search is not worth a history entry.
 * @param {string} hash @param {boolean} [typed] */
function go(hash, typed = false) {
  if (hash === location.hash) return;
  if (typed) history.replaceState(history.state, "", hash);
  else history.pushState(null, "", hash);
  route();
}

/** Keep the place in the history, once the reader scrolls. */
function keepPlace() {
  // The browser may keep in view what content that changes its height would move, before the observer reports it.
  const own = Math.abs(window.scrollY - reached) < 1 || content.offsetHeight !== height;
  if (performance.now() < until && own) return;
  until = 0;
  clearTimeout(scrolled);
  scrolled = setTimeout(() => history.replaceState(window.scrollY, ""), SCROLLED_MS);
}

function scrollToPlace() {
  if (performance.now() >= until) return;
  window.scrollTo(0, place);
  [reached, height] = [window.scrollY, content.offsetHeight];
}

/** Load the chart library early. If that fails, each chart says so. */
const preload = () => void plot.load().catch(() => {});

/** @param {Connection} now */
function showConnection(now) {
  sayState(now);
  if (now.state !== "live") return;
  signedIn();
  showAccount().then(refresh, () => live.checkStream());
}

/** @param {Connection} now */
function sayState({ state, since, why }) {
  const lost = state === "lost" ? (Date.now() - since) / 1000 : 0;
  const refused = `The server rejected the request: ${why}`;
  const words = { starting: "", live: "Live", lost: "Connection lost; retrying", "signed out": "Signed out", refused }[state];
  sayConnection(state, words, lost < 2 ? "" : ` · ${ago(lost)}`);
}

/** The age changes every second, so it is outside the element that is read aloud.
 * @type {(state: Connection["state"], words: string, age?: string) => void} */
function sayConnection(state, words, age = "") {
  mark(connection, "data-state", state);
  say(byId("state"), words);
  say(byId("age"), age);
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
  if (live.connection.state !== "live") sayState(live.connection);
  if (!document.hidden) page?.tick?.();
}

/** Focus the content without following the link: the address holds the view after "#". @param {Event} event */
function skip(event) {
  event.preventDefault();
  content.focus();
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.key === "p" && (event.ctrlKey || event.metaKey) && page?.charts && window.parent === window) {
    event.preventDefault();
    printing ??= page.charts.drawAll().then(() => window.print()).finally(() => (printing = null));
  }
  const target = event.target instanceof Element ? event.target : null;
  const command = document.querySelector("dialog[open]") ? null : commandOf(event, target);
  if (command !== null && act(command)) event.preventDefault();
}

/** Run a command. Return false if nothing here handles it. @param {Command} command */
function act(command) {
  if (page?.act?.(command)) return true;
  if (command === "help") /** @type {HTMLDialogElement} */ (byId("keys")).showModal();
  else if (command === "link") void copyLink();
  else if (command === "theme") toggleTheme();
  else if (command === "list") location.hash = "#/";
  else if (command === "search") return search();
  else return false;
  return true;
}

/** Focus the first visible search field. */
function search() {
  const fields = /** @type {NodeListOf<HTMLInputElement>} */ (content.querySelectorAll("input[type=search]"));
  const field = [...fields].find((each) => each.checkVisibility());
  field?.select();
  field?.focus();
  return field !== undefined;
}

function recolour() {
  say(byId("theme"), theme() === "dark" ? "☾ Dark" : "☀ Light");
  void page?.charts?.recolour();
}

async function start() {
  installTips();
  byId("theme").addEventListener("click", toggleTheme);
  byId("help").addEventListener("click", () => act("help"));
  document.addEventListener("keydown", onKey);
  byId("skip").addEventListener("click", skip);
  await Promise.all([loadTheme(recolour), signInFromAddress()]);
  window.addEventListener("hashchange", route);
  window.addEventListener("popstate", () => clearTimeout(scrolled));
  history.scrollRestoration = "manual";
  window.addEventListener("scroll", keepPlace, { passive: true });
  new ResizeObserver(scrollToPlace).observe(content);
  document.addEventListener("visibilitychange", look);
  window.addEventListener("pagehide", () => live.pause());
  window.addEventListener("pageshow", look);
  window.addEventListener("online", reconnect);
  lastTick = Date.now();
  setInterval(everySecond, 1000);
  setInterval(refresh, POLL_MS);
  setTimeout(() => live.connection.state !== "signed out" && preload(), WARM_MS);
  route();
}

await start();
