// Replaces the colour roles in figures by a theme's colours. Pure; charts/parts/roles.py does the same.

const PREFIX = "role:";

// Roles are only under keys that end like this. Names elsewhere may also begin with "role:".
const COLOURS = /color(scale)?$/;

/** A copy of `figure` with colours in place of roles. @param {Figure} figure @param {Roles} roles */
function resolve(figure, roles) {
  return /** @type {Figure} */ (resolved(figure, roles, ""));
}

/** @type {(part: unknown, roles: Roles, key: string) => unknown} */
function resolved(part, roles, key) {
  if (typeof part === "string") return COLOURS.test(key) && part.startsWith(PREFIX) ? colour(part.slice(PREFIX.length), roles) : part;
  if (Array.isArray(part)) return part.map((item) => resolved(item, roles, key));
  if (typeof part !== "object" || part === null) return part;
  return Object.fromEntries(Object.entries(part).map(([key, value]) => [key, resolved(value, roles, key)]));
}

/** @param {string} role @param {Roles} roles */
function colour(role, roles) {
  const found = roles[role];
  if (found === undefined) throw new Error(`unknown role: ${role}`);
  return found;
}

// Draws the figures of a report, which is a single file and loads nothing: in the reader's theme, and light on paper.


const CONFIG = { displayModeBar: false, showSendToCloud: false, plotlyServerURL: "", responsive: true };

const dark = matchMedia("(prefers-color-scheme: dark)");
// As in report.css.
const phone = matchMedia("screen and (max-width: 720px)");
const themes = /** @type {{light: Roles, dark: Roles}} */ (jsonIn("roles"));
const wide = /** @type {Record<string, Figure>} */ (jsonIn("figures"));
const narrow = /** @type {Record<string, Figure>} */ (jsonIn("figures-narrow"));

/** @param {string} id of an element that holds JSON */
function jsonIn(id) {
  return JSON.parse(document.getElementById(id)?.textContent ?? "null");
}

/** @param {Roles} roles @param {Record<string, Figure>} figures */
function draw(roles, figures) {
  for (const [name, figure] of Object.entries(figures)) {
    const place = document.querySelector(`[data-figure="${name}"] .plot`);
    if (place instanceof HTMLElement) void drawIn(place, roles, figure);
  }
}

/** Draw a figure, or show its error in its place, so that the others are still drawn.
 * @type {(place: HTMLElement, roles: Roles, figure: Figure) => Promise<void>} */
async function drawIn(place, roles, figure) {
  try {
    const { data, layout } = resolve(figure, roles);
    await window.Plotly?.react(place, /** @type {object[]} */ (data), /** @type {object} */ (layout), CONFIG);
  } catch (error) {
    place.textContent = `Not drawn: ${error instanceof Error ? error.message : String(error)}`;
  }
}

function drawAsSeen() {
  draw(dark.matches ? themes.dark : themes.light, phone.matches ? narrow : wide);
}

for (const query of [dark, phone]) query.addEventListener("change", drawAsSeen);
window.addEventListener("beforeprint", () => draw(themes.light, wide));
window.addEventListener("afterprint", drawAsSeen);
drawAsSeen();

