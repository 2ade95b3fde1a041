// What is wrong with how a page is laid out, by the browser's own measures: a list of words.
() => {
  const wide = document.documentElement.clientWidth;
  const faults = new Set();

  const words = (one) => {
    const text = (one.textContent ?? "").trim().slice(0, 60);
    return `${one.tagName.toLowerCase()}.${one.getAttribute("class") ?? ""} “${text}”`;
  };
  const scrolls = (one) =>
    one && one !== document.body && (/auto|scroll/.test(getComputedStyle(one).overflowX) || scrolls(one.parentElement));
  // What only a screen reader reads lies within a pixel.
  const hidden = (one) => one && (one.clientWidth === 1 && one.clientHeight === 1 || hidden(one.parentElement));
  const seen = (one) => !hidden(one) && one.checkVisibility({ visibilityProperty: true, opacityProperty: true, contentVisibilityAuto: true });

  function look(one) {
    const box = one.getBoundingClientRect();
    if (box.width <= 1 || box.height <= 1 || box.right < 0 || box.bottom < 0) return;
    const style = getComputedStyle(one);
    if ((box.right > wide + 1 || box.left < -1) && !scrolls(one)) faults.add(`sticks out: ${words(one)}`);
    // Three dots are fair where the whole is said elsewhere.
    const elsewhere = style.textOverflow === "ellipsis" && one.closest("[title], a[href], [data-definition]");
    const hidden = /hidden|clip/.test(style.overflowX) && one.scrollWidth > one.clientWidth + 1;
    if (hidden && !elsewhere) faults.add(`cut off: ${words(one)}`);
  }

  function lookWithin(plot) {
    const box = plot.getBoundingClientRect();
    const chart = plot.closest("[data-figure]")?.dataset.figure;
    for (const text of plot.querySelectorAll(".main-svg text")) {
      const { left, right, top, bottom, width } = text.getBoundingClientRect();
      // Half a letter may.
      const out = left < box.left - 5 || right > box.right + 5 || top < box.top - 5 || bottom > box.bottom + 5;
      if (width && out && seen(text)) faults.add(`cut off in ${chart}: “${text.textContent}”`);
    }
  }

  const { scrollWidth } = document.documentElement;
  if (scrollWidth > wide) faults.add(`the page is ${scrollWidth} px wide, of ${wide}`);
  const all = document.querySelectorAll("body *:not(.plot *, script, style, option, .visually-hidden)");
  [...all].filter(seen).forEach(look);
  [...document.querySelectorAll(".plot.js-plotly-plot")].filter(seen).forEach(lookWithin);
  return [...faults];
}
