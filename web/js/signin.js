// The sign-in box. It opens over the page, which stays as it is, if the session is missing or has expired.

import { h, say } from "./dom.js";
import { onRefused, signIn } from "./session.js";

export class SignIn {
  #field = h("input", { id: "signin-key", type: "text", required: true, autocomplete: "off", spellcheck: "false", autocapitalize: "none" });
  #why = h("p", { class: "trouble", role: "alert" });
  #button = h("button", { type: "submit", class: "primary" }, "Sign in");
  #again = h("button", { type: "button", class: "again", hidden: true, onclick: () => this.#show() }, "Sign in");
  #box = this.#build();
  #left = false;

  /** A button that reopens a closed box is put after `beside`.
   * @param {HTMLElement} beside @param {() => void} onIn called after a sign-in */
  constructor(beside, onIn) {
    this.onIn = onIn;
    beside.after(this.#again);
    document.body.append(this.#box);
    onRefused(() => this.#want());
  }

  /** The server accepts this browser, after a sign-in here or in another tab. */
  done() {
    this.#left = false;
    this.#again.hidden = true;
    this.#box.close();
  }

  /** Open the box. If the reader has closed it, show only the button that reopens it. */
  #want() {
    this.#again.hidden = false;
    if (!this.#left && !this.#box.open) this.#show();
  }

  #show() {
    say(this.#why, "");
    this.#field.value = "";
    this.#box.showModal();
  }

  /** @param {Event} event */
  async #submit(event) {
    event.preventDefault();
    this.#button.disabled = true;
    say(this.#why, "");
    try {
      await signIn(this.#field.value);
      this.#field.value = "";
      this.done();
      this.onIn();
    } catch (error) {
      say(this.#why, error instanceof Error ? error.message : String(error));
      this.#field.select();
    } finally {
      this.#button.disabled = false;
    }
  }

  #build() {
    const leave = () => {
      this.#left = true;
      this.#box.close();
    };
    return h(
      "dialog",
      { class: "sheet signin", "aria-labelledby": "signin-title", oncancel: leave },
      h(
        "form",
        { onsubmit: (event) => void this.#submit(event) },
        h("h2", { id: "signin-title" }, "Sign in to ampmon"),
        h("p", {}, "This browser is not signed in, or its session expired. Create a sign-in link on the server's machine:"),
        h("pre", {}, h("code", {}, "ampmon token link")),
        h("label", { for: "signin-key" }, "Paste the link, its code, or an access token"),
        this.#field,
        this.#why,
        h("footer", {}, h("button", { type: "button", onclick: leave }, "Not now"), this.#button),
      ),
    );
  }
}
