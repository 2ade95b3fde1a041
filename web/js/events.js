// Reads server-sent events with fetch: unlike EventSource, it sends credentials in a header and reports refusals.

import { Refused, SignedOut, call } from "./api.js";

const OPEN_MS = 15_000;
// The server sends something every 15 s. After this long without data, the connection is dead.
const SILENCE_MS = 40_000;

/** Listen to the stream at a path under /api/v1. Return a function that closes it. `onEnd` is called once, unless the
 * caller closed the stream.
 * @param {string} path
 * @param {{onOpen: () => void, onEvents: (events: ServerEvent[]) => void, onEnd: (why: Refused | SignedOut | null) => void}} listener */
export function listen(path, { onOpen, onEvents, onEnd }) {
  const controller = new AbortController();
  let closed = false;
  let silence = setTimeout(() => controller.abort(), OPEN_MS);

  async function read() {
    const response = await call(path, { signal: controller.signal });
    onOpen();
    const parse = reader();
    const parts = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await parts?.read(); part && !part.done; part = await parts?.read()) {
      clearTimeout(silence);
      silence = setTimeout(() => controller.abort(), SILENCE_MS);
      const events = parse(part.value);
      if (events.length && !closed) onEvents(events);
    }
  }

  read()
    .then(() => null, (error) => (error instanceof Refused || error instanceof SignedOut ? error : null))
    .then((why) => {
      clearTimeout(silence);
      if (!closed) onEnd(why);
    });
  return () => {
    closed = true;
    controller.abort();
  };
}

/** Create a parser: a function that takes the next text of a stream and returns the events it completes. */
export function reader() {
  let rest = "";
  return (/** @type {string} */ text) => {
    const blocks = (rest + text).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop() ?? "";
    return blocks.map(event).filter(({ data }) => data !== "");
  };
}

/** @param {string} block @returns {ServerEvent} */
function event(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    const [field, value = ""] = line.split(/: ?(.*)/s);
    if (field === "event") name = value;
    if (field === "data") data.push(value);
  }
  return { name, data: data.join("\n") };
}
