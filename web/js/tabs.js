// Tabs. The content of hidden tabs is not on the screen, so it fetches nothing.

import { h, mark } from "./dom.js";

/** The tab that a key leads to. @type {Record<string, (place: number, tabs: number) => number>} */
const MOVES = {
  ArrowRight: (place, tabs) => (place + 1) % tabs,
  ArrowLeft: (place, tabs) => (place + tabs - 1) % tabs,
  Home: () => 0,
  End: (_, tabs) => tabs - 1,
};

export class Tabs {
  #tabs;
  #panels;

  /** @param {string} label @param {[name: string, words: string, content: HTMLElement[]][]} tabs
   * @param {(name: string) => void} onChoose */
  constructor(label, tabs, onChoose) {
    this.names = tabs.map(([name]) => name);
    this.onChoose = onChoose;
    this.#tabs = tabs.map(([name, words]) =>
      h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `in-${name}`, onclick: () => onChoose(name) }, words),
    );
    this.#panels = tabs.map(([name, , content]) => h("div", { role: "tabpanel", id: `in-${name}`, "aria-labelledby": `tab-${name}` }, ...content));
    const list = h("div", { role: "tablist", "aria-label": label, onkeydown: (event) => this.#press(event) }, ...this.#tabs);
    this.element = h("div", { class: "tabs" }, list, ...this.#panels);
  }

  /** Show a tab; the first if there is none of that name. @param {string} name */
  show(name) {
    const place = Math.max(0, this.names.indexOf(name));
    this.shown = this.names[place] ?? "";
    this.#tabs.forEach((tab, index) => {
      mark(tab, "aria-selected", String(index === place));
      tab.tabIndex = index === place ? 0 : -1;
    });
    this.#panels.forEach((panel, index) => (panel.hidden = index !== place));
  }

  /** @param {KeyboardEvent} event */
  #press(event) {
    const move = event.ctrlKey || event.altKey || event.metaKey ? undefined : MOVES[event.key];
    const to = move?.(this.#tabs.findIndex((tab) => tab === document.activeElement), this.#tabs.length);
    if (to === undefined) return;
    event.preventDefault();
    this.onChoose(this.names[to] ?? "");
    this.#tabs[to]?.focus({ preventScroll: true });
  }
}
