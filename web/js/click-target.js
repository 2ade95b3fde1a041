// What a click on a row of a chart opens: a parameter, or the search for those of a module. Pure.

/** Null if the click opens nothing. @type {(figure: Figure | null, point: Point, view: View) => View | null} */
export function opened(figure, { y }, view) {
  const opens = figure?.layout.meta.opens;
  if (!figure || !opens) return null;
  const rows = /** @type {{y?: unknown}} */ (figure.data[0]).y;
  // A row has a name, or else a place from the top.
  const [name, value] = opens[typeof y === "number" ? Math.round(-y) : Array.isArray(rows) ? rows.indexOf(y) : -1] ?? [];
  if (name === undefined || value === undefined) return null;
  if (name === "parameter") return { ...view, parameter: value };
  return { ...view, choices: { ...view.choices, [name]: value } };
}
