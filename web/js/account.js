// The account menu, and the sign-in box, which opens over the page if the session is missing or has expired.

import { succeeded } from "./browser.js";
import { byId, DECLARED, html, mark, nothing, openDialog, say } from "./dom.js";
import { get, signIn, signOut, whenSignedOut, wordsOf } from "./server.js";

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
      <ul>${scopes.map((scope) => html`<li>${DECLARED.scopes[scope] ?? scope}</li>`)}</ul>
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
  if (await succeeded(signOut)) location.reload();
}

/** Open the box for signing in when a call is refused. A button in the bar reopens it, once the reader has closed it.
 * Returns what to call when the server accepts this browser, after a sign-in here or in another tab.
 * @param {() => void} onIn called after a sign-in here */
export function installSignIn(onIn) {
  const box = /** @type {HTMLDialogElement} */ (byId("signin"));
  const field = /** @type {HTMLInputElement} */ (byId("signin-key"));
  const [why, again] = [byId("signin-why"), byId("signin-again")];
  let left = false;

  const show = () => {
    say(why, "");
    field.value = "";
    box.showModal();
  };
  const accepted = () => {
    left = false;
    again.hidden = true;
    box.close();
  };
  const submit = async (/** @type {SubmitEvent} */ event) => {
    const button = /** @type {HTMLButtonElement} */ (event.submitter);
    event.preventDefault();
    button.disabled = true;
    say(why, "");
    try {
      await signIn(field.value);
      field.value = "";
      accepted();
      onIn();
    } catch (error) {
      say(why, wordsOf(error));
      field.select();
    } finally {
      button.disabled = false;
    }
  };
  box.addEventListener("submit", (event) => void submit(event));
  box.addEventListener("cancel", () => (left = true));
  byId("signin-leave").addEventListener("click", () => {
    left = true;
    box.close();
  });
  again.addEventListener("click", show);
  whenSignedOut(() => {
    again.hidden = false;
    if (!left && !box.open) show();
  });
  return accepted;
}
