// Replaces the colour roles in figures by a theme's colours. Pure; charts/parts/roles.py does the same.

const PREFIX = "role:";

// Roles are only under keys that end like this. Names elsewhere may also begin with "role:".
const COLOURS = /color(scale)?$/;

/** A copy of `figure` with colours in place of roles. @param {Figure} figure @param {Roles} roles */
export function resolve(figure, roles) {
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
