// What a reader must know before trusting the page.

import { h } from "./dom.js";
import { html, render } from "./lit-html.js";

export class Notices {
  element = h("ul", { class: "notices", role: "status", hidden: true });

  /** @param {string[]} notices */
  show(notices) {
    this.element.hidden = notices.length === 0;
    render(notices.map((words) => html`<li>${words}</li>`), this.element);
  }
}
