// One theme for the dashboard and its documentation: what the reader chooses in one holds in the other.

{
  const KEY = "ampmon.theme";
  const THEMES = ["light", "dark"];
  const SCHEMES = ["default", "slate"];
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";

  const chosen = () => {
    let theme = system;
    try {
      theme = localStorage.getItem(KEY) ?? system;
    } catch {
      // Without storage the system's theme stays.
    }
    const index = theme === "dark" ? 1 : 0;
    const media = `(prefers-color-scheme: ${THEMES[index]})`;
    return { index, color: { media, scheme: SCHEMES[index], primary: "indigo", accent: "indigo" } };
  };

  const choose = ({ index }) => {
    try {
      if (THEMES[index] === system) localStorage.removeItem(KEY);
      else localStorage.setItem(KEY, THEMES[index]);
    } catch {
      // The choice lasts until the next page.
    }
  };

  // The site's own script asks these two for the palette before anything is drawn, and tells them of a change.
  const { __md_get: get, __md_set: set } = globalThis;
  globalThis.__md_get = (key, ...rest) => (key === "__palette" ? chosen() : get(key, ...rest));
  globalThis.__md_set = (key, value, ...rest) => (key === "__palette" ? choose(value) : set(key, value, ...rest));
}
