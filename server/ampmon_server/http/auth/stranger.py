"""The sign-in page for browsers that are not signed in. It needs no script and no other file."""

from __future__ import annotations

from functools import cache
from html import escape

from starlette.responses import HTMLResponse

from ampmon_server.pages import styles


SHEETS = ("base", "bar", "controls", "signin")

_SHELL = """\
<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <title>Sign in · ampmon</title>
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <meta name="color-scheme" content="light dark">
    <link rel="icon" href="data:,">
    <style>
{style}
    </style>
  </head>
  <body>
    <header class="bar"><span class="mark">ampmon</span></header>
    <main class="stranger">
      <h1>{title}</h1>
      <p>{words}</p>
      <pre><code>ampmon token link</code></pre>
      <p>It prints an address that is good for ten minutes and lets one browser in, for thirty days. With a server
      elsewhere, or on another data directory, <code>ampmon token link --help</code> says how to name it.</p>
      <p>Then open this address again to return to this page.</p>
    </main>
  </body>
</html>
"""

UNKNOWN = "Sign in to ampmon"
EXPIRED = "This link was used or has expired"
_WHAT_TO_DO = {
    UNKNOWN: "The server does not know this browser. Make a sign-in link on the machine where the server runs:",
    EXPIRED: "Each link lets one browser in, once, and only for a while. Make a new one where the server runs:",
}


def page(title: str) -> HTMLResponse:
    """Return the page, with status 401. ``title`` is `UNKNOWN` or `EXPIRED`."""
    return HTMLResponse(_written(title), 401)


@cache
def _written(title: str) -> str:
    words = escape(_WHAT_TO_DO[title])
    return _SHELL.format(style=styles.embedded(SHEETS), title=title, words=words)
