// A hairline through all charts of one x, where the pointer is on one of them: they have the same margins.

/** @param {HTMLElement} charts what holds them; its style has the line's place, or none */
export function install(charts) {
  charts.addEventListener("pointermove", (event) => {
    const x = event.pointerType === "touch" ? null : placeOf(event);
    if (x === null) charts.style.removeProperty("--cross");
    else charts.style.setProperty("--cross", `${x}px`);
  });
  charts.addEventListener("pointerleave", () => charts.style.removeProperty("--cross"));
}

/**
 * How far from a chart's left the pointer is, or null where it is over none.
 * @param {PointerEvent} event
 */
function placeOf({ target, clientX }) {
  const chart = target instanceof Element ? target.closest(".linked > .plot") : null;
  const drawn = chart?.querySelector(".nsewdrag")?.getBoundingClientRect();
  if (!chart || !drawn || clientX < drawn.left || clientX > drawn.right) return null;
  return Math.round(clientX - chart.getBoundingClientRect().left);
}
