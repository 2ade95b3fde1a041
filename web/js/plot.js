// Draws figures. The only module that uses Plotly, whose script is loaded when first needed.

import { dateOf, unpacked } from "./saving.js";
import { urlOf } from "./server.js";

const CONFIG = {
  displayModeBar: false,
  showTips: false,
  // Plotly would otherwise offer to send the data to its makers.
  plotlyServerURL: "",
  doubleClick: /** @type {const} */ (false),
};

const SOON_MS = 350;

/** @type {Promise<Plotly> | undefined} */
let loading;

/** @type {Promise<void>} the drawing under way, and the queue behind it */
let turn = Promise.resolve();

/** @type {WeakMap<HTMLElement, object>} the last request for each chart */
const wishes = new WeakMap();

/** @type {WeakSet<HTMLElement>} charts whose range the page sets, not the reader */
const quiet = new WeakSet();

/** Load Plotly once. Rejects if the script cannot be loaded; the next call tries again. */
export function load() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = urlOf("vendor/plotly.min.js");
    script.addEventListener("load", () => (window.Plotly ? resolve(window.Plotly) : reject(new Error("no Plotly"))));
    script.addEventListener("error", () => {
      loading = undefined;
      script.remove();
      reject(new Error("The chart library did not load from /vendor/plotly.min.js. Reload the page."));
    });
    document.head.append(script);
  });
  return loading;
}

/** Draw a figure. `figure` is called when its turn comes, and its roles must be colours.
 * @type {(element: HTMLElement, figure: () => Figure) => Promise<void>} */
export function draw(element, figure) {
  wishes.set(element, {});
  return queued(async (Plotly) => {
    // It may have been closed while it waited for its turn.
    if (!element.isConnected) return;
    const { data, layout } = dated(figure());
    const before = isDrawn(element);
    await withoutEvents(element, () => Plotly.react(element, data, layout, CONFIG));
    if (!before) new ResizeObserver(() => fit(element, Plotly)).observe(element);
  });
}

/** Fit a chart to its element: to the window's width, and to what changed while its tab was hidden.
 * @type {(element: HTMLElement, Plotly: Plotly) => void} */
function fit(element, Plotly) {
  const wide = element.querySelector(".main-svg")?.clientWidth;
  if (wide && element.clientWidth && wide !== element.clientWidth) void withoutEvents(element, async () => Plotly.Plots.resize(element));
}

/** Show another x range, unless its figure comes soon: moving a chart costs as much as drawing it.
 * @type {(element: HTMLElement, range: PlotRange) => Promise<void>} */
export async function show(element, range) {
  const wish = {};
  wishes.set(element, wish);
  await new Promise((resolve) => setTimeout(resolve, SOON_MS));
  if (wishes.get(element) !== wish) return;
  await queued(async (Plotly) => {
    if (!element.isConnected || !isDrawn(element) || wishes.get(element) !== wish) return;
    // Plotly's types lack paths into the layout.
    const change = /** @type {object} */ ({ "xaxis.range": range });
    await withoutEvents(element, () => Plotly.relayout(element, change));
  });
}

/** Run work in turn, each in its own task, so that the first chart is visible before the last is drawn.
 * @param {(Plotly: Plotly) => Promise<void>} work */
function queued(work) {
  // The browser prints what is drawn when its `beforeprint` event ends.
  if (window.Plotly && matchMedia("print").matches) return work(window.Plotly);
  const mine = turn.then(load).then(async (Plotly) => {
    await new Promise((resolve) => setTimeout(resolve));
    await work(Plotly);
  });
  turn = mine.catch(() => {});
  return mine;
}

/** A figure with its times as dates. Plotly would show numbers by the browser's clock, which may change between two of them.
 * @type {(figure: Figure) => {data: object[], layout: object}} */
function dated({ data, layout }) {
  const { xaxis, shapes = [], meta: { zone } } = layout;
  if (zone === undefined) return { data, layout };
  const at = (/** @type {unknown} */ x) => dateOf(Number(x), zone);
  const placed = shapes.map((each) => (each.xref === "paper" ? each : { ...each, x0: at(each.x0), x1: at(each.x1) }));
  return { data: data.map((trace) => ({ ...trace, x: unpacked(trace.x).map(at) })), layout: { ...layout, shapes: placed, xaxis: { ...xaxis, range: xaxis?.range?.map(at) } } };
}

/** A figure's image as a data: URL. @type {(figure: Figure, format: "png" | "svg") => Promise<string>} */
export async function picture(figure, format) {
  const { width = null, height } = figure.layout;
  return (await load()).toImage(dated(figure), { format, width, height, scale: format === "png" ? 2 : 1 });
}

/** @param {HTMLElement} element */
export function clear(element) {
  if (isDrawn(element)) window.Plotly?.purge(element);
}

/** Report what the reader does to a drawn chart. @type {(element: HTMLElement, panel: Panel, charts: ChartActions) => void} */
export function listen(element, panel, charts) {
  if (!("on" in element) || typeof element.on !== "function") return;
  element.on("plotly_relayout", (/** @type {Record<string, number | string | undefined>} */ change) => {
    const { "xaxis.range[0]": low, "xaxis.range[1]": high } = change;
    if (low !== undefined && high !== undefined && !quiet.has(element)) charts.zoom(panel, [low, high]);
  });
  element.on("plotly_doubleclick", () => charts.show(null));
  element.on("plotly_click", (/** @type {{points: Point[]}} */ { points: [point] }) => {
    if (point) charts.click(panel, point);
  });
}

/** @param {HTMLElement} element */
const isDrawn = (element) => element.classList.contains("js-plotly-plot");

/** @param {HTMLElement} element @param {() => Promise<unknown>} work */
async function withoutEvents(element, work) {
  quiet.add(element);
  try {
    await work();
  } finally {
    quiet.delete(element);
  }
}
