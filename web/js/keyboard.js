// What each key does. Pure: it reads only an event's fields. The browser's own shortcuts are left alone.

/** In the order of the help dialog. The first key of each is the main one. @type {{keys: string[], command: Command, words: string, group: "Charts" | "Page"}[]} */
export const KEYS = [
  { keys: ["+", "="], command: "in", words: "Zoom in", group: "Charts" },
  { keys: ["-", "−"], command: "out", words: "Zoom out", group: "Charts" },
  { keys: ["ArrowLeft"], command: "left", words: "Earlier", group: "Charts" },
  { keys: ["ArrowRight"], command: "right", words: "Later", group: "Charts" },
  { keys: ["0", "Escape"], command: "whole", words: "The whole run", group: "Charts" },
  { keys: ["f"], command: "follow", words: "Follow the newest steps, or stop following", group: "Charts" },
  { keys: ["p"], command: "pause", words: "Pause or resume live updates", group: "Charts" },
  { keys: ["j", "]"], command: "next", words: "The next skip", group: "Charts" },
  { keys: ["k", "["], command: "previous", words: "The previous skip", group: "Charts" },
  { keys: ["c"], command: "link", words: "Copy a link to this view", group: "Page" },
  { keys: ["/"], command: "search", words: "Search", group: "Page" },
  { keys: ["g"], command: "list", words: "All runs", group: "Page" },
  { keys: ["t"], command: "theme", words: "Switch between light and dark", group: "Page" },
  { keys: ["?"], command: "help", words: "Show this help", group: "Page" },
];

const COMMANDS = new Map(KEYS.flatMap(({ keys, command }) => keys.map((key) => [key, command])));

/** Elements that handle keys themselves. */
const TYPED = "input, select, textarea, [contenteditable], [role=slider], [role=listbox], [role=menu], [role=textbox]";

/** Elements that scroll by arrow keys. */
const SCROLLED = "pre, table, .sideways";

/** The command of a key press; null if the browser, a field or another listener handles it. `target` has the focus.
 * @param {Pick<KeyboardEvent, "key" | "code" | "ctrlKey" | "metaKey" | "altKey" | "isComposing" | "defaultPrevented">} event
 * @param {{closest(selector: string): unknown} | null} target */
export function commandOf(event, target) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return null;
  const command = COMMANDS.get(latin(event)) ?? null;
  if (command === null || target?.closest(TYPED)) return null;
  return (command === "left" || command === "right") && target?.closest(SCROLLED) ? null : command;
}

/** The Latin letter of a key, if the keyboard has another script. @param {Pick<KeyboardEvent, "key" | "code">} event */
function latin({ key, code }) {
  const foreign = key.length === 1 && key > "\u007f" && code.startsWith("Key");
  return foreign ? code.slice(3).toLowerCase() : key;
}

/** @param {string} key */
export function keycap(key) {
  return { ArrowLeft: "←", ArrowRight: "→", "-": "−", Escape: "Esc" }[key] ?? key;
}
