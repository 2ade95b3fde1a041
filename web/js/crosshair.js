// Where the pointer is on a chart. After a tap on a touch screen, the place stays.

/** Report the pointer's place, at most once a frame; null outside all plots.
 * @type {(within: HTMLElement, onPlace: (place: Place | null) => void) => void} */
export function install(within, onPlace) {
  /** @type {PointerEvent | null} */
  let newest = null;
  const tell = () => {
    onPlace(newest && placeOf(newest));
    newest = null;
  };
  /** @param {PointerEvent} event */
  const look = (event) => {
    if (event.pointerType === "touch" && event.type !== "pointerdown") return;
    if (newest === null) requestAnimationFrame(tell);
    newest = event;
  };
  for (const kind of /** @type {const} */ (["pointermove", "pointerdown", "pointerleave"])) within.addEventListener(kind, look);
}

/** @param {PointerEvent} event @returns {Place | null} */
function placeOf({ target, clientX, clientY, type }) {
  const panel = type !== "pointerleave" && target instanceof Element && target.closest(".plot")?.closest(".panel");
  if (!panel) return null;
  const plot = (target.closest(".nsewdrag") ?? panel.querySelector(".nsewdrag"))?.getBoundingClientRect();
  if (!plot || clientX < plot.left || clientX > plot.right) return null;
  return { panel, across: (clientX - plot.left) / plot.width, up: (plot.bottom - clientY) / plot.height };
}
