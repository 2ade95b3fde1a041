// Which rows of a long list are on the screen, or nearly so. Pure.

/** Extra rows above and below the screen, for scrolling. */
const SPARE = 8;

/** The first row to draw, and the one after the last. In pixels: `top` is the first row's place on the screen, `height`
 * the screen's, and `row` a row's.
 * @type {(screen: {top: number, height: number, row: number, total: number}) => [first: number, after: number]} */
export function rowsOn({ top, height, row, total }) {
  const first = Math.floor(-top / row) - SPARE;
  const after = Math.ceil((height - top) / row) + SPARE;
  return [Math.min(Math.max(0, first), total), Math.min(Math.max(0, after), total)];
}

/** The pages of `size` rows that hold these rows. @type {(first: number, after: number, size: number) => number[]} */
export function pagesOf(first, after, size) {
  const pages = [];
  for (let page = Math.floor(first / size); page * size < after; page += 1) pages.push(page);
  return pages.length ? pages : [0];
}
