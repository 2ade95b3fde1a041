// The account menu: the signed-in user in the bar, what they may do, and signing out.

import { get } from "./api.js";
import { h, mark, say } from "./dom.js";
import { signOut } from "./session.js";
import { toast } from "./toast.js";

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
