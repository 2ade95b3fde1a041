// What the page asks of a browser while it is loaded; nothing is drawn where there is none.

const declared = { charts: {}, statistics: {}, terms: {}, numbers: {}, statuses: {}, severities: {}, scopes: {} };
globalThis.document = { createTreeWalker: () => null, getElementById: () => ({ textContent: JSON.stringify(declared) }) };
globalThis.matchMedia = () => ({ matches: false });
globalThis.window = { addEventListener() {} };
