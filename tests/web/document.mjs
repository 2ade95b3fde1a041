// What the page asks of a browser while it is loaded; nothing is drawn where there is none.

globalThis.document = { createTreeWalker: () => null, getElementById: () => null };
globalThis.matchMedia = () => ({ matches: false });
