// Gives a page of the manual the theme that the reader chose; it needs nothing else.

import * as theme from "./theme.js";

await theme.load();
