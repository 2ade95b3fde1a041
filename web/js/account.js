// The account menu, and the sign-in box, which opens over the page if the session is missing or has expired.

import { toast } from "./browser.js";
import { h, mark, say } from "./dom.js";
import { get, onRefused, signIn, signOut } from "./server.js";

/** @type {Record<string, string>} */
const MAY = {
  read: "See runs, charts and this page",
  ingest: "Send records; rename, archive and delete your own runs",
  admin: "Change all runs, and create tokens",
};

/** @type {Me | null} */
let me = null;

/** Whether to offer changes to a run. The server decides on them. @param {{owner: string | null}} run */
export function mayChange({ owner }) {
  if (me === null) return false;
  return me.scopes.includes("admin") || (me.scopes.includes("ingest") && me.owner === owner);
}

/** The button in the bar, hidden until the server says who is signed in. */
export class AccountMenu {
  #button;

  /** @param {HTMLButtonElement} button */
  constructor(button) {
    this.#button = button;
    button.addEventListener("click", () => this.#show());
  }

  /** Ask the server who is signed in. Rejects if it does not answer. */
  async refresh() {
    me = /** @type {Me} */ (await get("/me"));
    this.#button.hidden = false;
    say(this.#button, ([...(me.owner ?? "")][0] ?? "•").toUpperCase());
    mark(this.#button, "title", menuTitle(me));
    mark(this.#button, "aria-label", menuTitle(me));
  }

  #show() {
    if (me === null) return;
    const close = () => sheet.close();
    const leave = me.signed_in_elsewhere ? null : h("button", { type: "button", onclick: () => void endSession() }, "Sign out");
    const sheet = h(
      "dialog",
      { class: "sheet who", "aria-labelledby": "who-title", onclose: () => sheet.remove() },
      h("h2", { id: "who-title" }, "Signed in", me.owner === null ? "" : " as ", me.owner === null ? null : h("bdi", {}, me.owner)),
      me.owner === null ? h("p", {}, "With the server's own token.") : null,
      h("ul", {}, ...me.scopes.map((scope) => h("li", {}, MAY[scope] ?? scope))),
      h("p", {}, me.projects === null ? "Access to all projects." : `Access to these projects: ${me.projects.join(", ")}.`),
      me.signed_in_elsewhere ? h("p", {}, "You signed in at the proxy in front of this server: sign out there.") : null,
      h("footer", {}, leave, h("button", { type: "button", class: "primary", onclick: close }, "Close")),
    );
    document.body.append(sheet);
    sheet.showModal();
  }
}

async function endSession() {
  try {
    await signOut();
    location.reload();
  } catch {
    toast("Action failed: the server did not answer, or rejected it.");
  }
}

/** @param {Me} of */
function menuTitle({ owner }) {
  return owner === null ? "Signed in with the server's own token" : `Signed in as ${owner}`;
}

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
