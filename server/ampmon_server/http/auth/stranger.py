"""The sign-in page for browsers that are not signed in. It needs no script and no other file."""

from __future__ import annotations

from functools import cache
from html import escape

from starlette.responses import HTMLResponse

from ampmon_server.pages import assets


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
      <p>The link works once, within ten minutes, and signs one browser in for thirty days. For a server on another
      machine or data directory, see <code>ampmon token link --help</code>.</p>
      <p>Then open this address again to return to this page.</p>
    </main>
  </body>
</html>
"""

UNKNOWN = "Sign in to ampmon"
EXPIRED = "This link was used or has expired"
_WHAT_TO_DO = {
    UNKNOWN: "This browser is not signed in. Create a sign-in link on the machine where the server runs:",
    EXPIRED: "Each link works once and expires. Create a new one on the machine where the server runs:",
}


def page(title: str) -> HTMLResponse:
    """Return the page, with status 401. ``title`` is `UNKNOWN` or `EXPIRED`."""
    return HTMLResponse(_written(title), 401)


@cache
def _written(title: str) -> str:
    words = escape(_WHAT_TO_DO[title])
    return _SHELL.format(style=assets.embedded(SHEETS), title=title, words=words)
