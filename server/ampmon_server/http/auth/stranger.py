"""The sign-in page for browsers that are not signed in. It needs no script and no other file."""

from __future__ import annotations

from functools import cache

from starlette.responses import HTMLResponse

from ampmon_server.pages import documentation


_BODY = """\
<p>{words} Create {one} on the machine where the server runs:</p>
<pre><code>ampmon token link</code></pre>
<p>The link works once, within ten minutes, and signs one browser in for thirty days. For a server on another machine or
data directory, see <code>ampmon token link --help</code>.</p>
<p>Then open this address again to return to this page.</p>
"""

UNKNOWN = "Sign in to ampmon"
EXPIRED = "This link was used or has expired"
_WORDS = {
    UNKNOWN: {"words": "This browser is not signed in.", "one": "a sign-in link"},
    EXPIRED: {"words": "Each link works once and expires.", "one": "a new one"},
}


def page(title: str) -> HTMLResponse:
    """Return the page, with status 401. ``title`` is `UNKNOWN` or `EXPIRED`."""
    return HTMLResponse(_written(title), 401)


@cache
def _written(title: str) -> str:
    return documentation.shell(title, _BODY.format(**_WORDS[title]))
