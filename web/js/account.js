// The account menu, and the sign-in box, which opens over the page if the session is missing or has expired.

import { toast } from "./browser.js";
import { byId, html, mark, nothing, openDialog, say } from "./dom.js";
import { get, signIn, signOut, whenSignedOut, wordsOf } from "./server.js";

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

/** Ask the server who is signed in, and show it in the bar. Rejects if the server does not answer. */
export async function showAccount() {
  const { owner } = (me = /** @type {Me} */ (await get("/me")));
  const button = byId("who");
  const title = owner === null ? "Signed in with the server's own token" : `Signed in as ${owner}`;
  button.hidden = false;
  button.onclick = openAccount;
  say(button, ([...(owner ?? "")][0] ?? "•").toUpperCase());
  mark(button, "title", title);
  mark(button, "aria-label", title);
}

function openAccount() {
  const { owner, scopes, projects, signed_in_elsewhere: elsewhere } = /** @type {Me} */ (me);
  openDialog(
    { class: "sheet who", "aria-labelledby": "who-title" },
    html`
      <h2 id="who-title">Signed in${owner === null ? nothing : html` as <bdi>${owner}</bdi>`}</h2>
      ${owner === null ? html`<p>With the server's own token.</p>` : nothing}
      <ul>${scopes.map((scope) => html`<li>${MAY[scope] ?? scope}</li>`)}</ul>
      <p>${projects === null ? "Access to all projects." : `Access to these projects: ${projects.join(", ")}.`}</p>
      ${elsewhere ? html`<p>You signed in at the proxy in front of this server: sign out there.</p>` : nothing}
      <form method="dialog"><footer>
        ${elsewhere ? nothing : html`<button type="button" @click=${() => void endSession()}>Sign out</button>`}
        <button class="primary">Close</button>
      </footer></form>
    `,
  );
}

async function endSession() {
  try {
    await signOut();
    location.reload();
  } catch {
    toast("Action failed: the server did not answer, or rejected it.");
  }
}

/** The box for signing in. A button in the bar reopens it, once the reader has closed it. */
export class SignIn {
  #box = /** @type {HTMLDialogElement} */ (byId("signin"));
  #field = /** @type {HTMLInputElement} */ (byId("signin-key"));
  #why = byId("signin-why");
  #again = byId("signin-again");
  #left = false;

  /** @param {() => void} onIn called after a sign-in */
  constructor(onIn) {
    this.onIn = onIn;
    this.#box.addEventListener("cancel", () => (this.#left = true));
    this.#box.addEventListener("submit", (event) => void this.#submit(event));
    byId("signin-leave").addEventListener("click", () => {
      this.#left = true;
      this.#box.close();
    });
    this.#again.addEventListener("click", () => this.#show());
    whenSignedOut(() => {
      this.#again.hidden = false;
      if (!this.#left && !this.#box.open) this.#show();
    });
  }

  /** The server accepts this browser, after a sign-in here or in another tab. */
  done() {
    this.#left = false;
    this.#again.hidden = true;
    this.#box.close();
  }

  #show() {
    say(this.#why, "");
    this.#field.value = "";
    this.#box.showModal();
  }

  /** @param {SubmitEvent} event */
  async #submit(event) {
    const button = /** @type {HTMLButtonElement} */ (event.submitter);
    event.preventDefault();
    button.disabled = true;
    say(this.#why, "");
    try {
      await signIn(this.#field.value);
      this.#field.value = "";
      this.done();
      this.onIn();
    } catch (error) {
      say(this.#why, wordsOf(error));
      this.#field.select();
    } finally {
      button.disabled = false;
    }
  }
}
