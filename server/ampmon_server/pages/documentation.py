"""The documentation site as the server shows it, and pages that need no script and no other file."""

from __future__ import annotations

import html
from functools import cache
from pathlib import Path

from ampmon_server.pages import assets


_MOVED = {"README": "index"}
_OUTSIDE = {"errors", "measures"}
_SHEETS = ("base", "bar", "controls", "signin")
_SHELL = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
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
{body}
</main>
</body>
</html>
"""


def file(name: str) -> Path | None:
    """Return the site's file of that name, with "/" between folders, or a folder's index page; None without one."""
    site = assets.documentation_directory()
    wanted = f"{name}index.html" if name == "" or name.endswith("/") else name
    files = {path.relative_to(site).as_posix(): path for path in site.rglob("*") if path.is_file()}
    return files.get(wanted)


def address_of(finding: str) -> str:
    """Return the address in the site of a finding's page, or of the pages of measures and errors beside them."""
    name = finding.removesuffix(".md")
    folder = "" if name in _OUTSIDE else "findings/"
    return f"{folder}{_MOVED.get(name, name)}.html"


def shell(title: str, body: str) -> str:
    """Return a page in the style of the run's page, without its script."""
    return _SHELL.format(title=title, style=assets.embedded(_SHEETS), body=body)


@cache
def sign_in(*, expired: bool = False) -> str:
    """The page for a browser that is not signed in, or whose sign-in link has ``expired`` or was used."""
    title, why, one = "Sign in to ampmon", "This browser is not signed in.", "a sign-in link"
    if expired:
        title, why = "This link was used or has expired", "Each link works once and expires."
        one = "a new one"
    return shell(
        title,
        f"<p>{why} Create {one} on the machine where the server runs:</p>\n"
        "<pre><code>ampmon token link</code></pre>\n"
        "<p>The link works once, within ten minutes, and signs one browser in for thirty days. For a server on "
        "another machine or\ndata directory, see <code>ampmon token link --help</code>.</p>\n"
        "<p>Then open this address again to return to this page.</p>\n",
    )


def not_built() -> str:
    """The page in place of a site that this checkout has not built."""
    return shell(
        "The documentation is not built",
        "<p>With Python 3.11 or newer, run <code>make docs</code> in the checkout of this server. "
        "The same pages are Markdown files in its folder <code>docs</code>.</p>",
    )


def not_found(path: str) -> str:
    """The page for an address that this server does not have."""
    up = "../" * (path.count("/") - 1) or "./"
    return shell(
        "Page not found",
        f"<p>This server has no page at <code>{html.escape(path)}</code>.</p>\n"
        f'<p><a href="{up}">Runs</a> · <a href="{up}docs/">Documentation</a></p>',
    )
