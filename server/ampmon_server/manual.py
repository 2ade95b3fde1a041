"""The pages that explain findings, measures and error messages: Markdown as a browser shows it. Knows no run."""

from __future__ import annotations

import html
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from ampmon_server import assets
from ampmon_server.messages import anchor


_SHELL = """\
<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <title>{title} · ampmon</title>
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <meta name="color-scheme" content="light dark">
    <link rel="icon" href="data:,">
    <link rel="stylesheet" href="../css/base.css">
    <link rel="stylesheet" href="../css/bar.css">
    <link rel="stylesheet" href="../css/manual.css">
    <link rel="stylesheet" href="../css/tables.css">
    <script type="module" src="../js/manual.js"></script>
  </head>
  <body>
    <header class="bar"><a class="mark" href="../">ampmon</a></header>
    <main class="manual">
{body}    </main>
  </body>
</html>
"""


def page(rule: str) -> str | None:
    """The page of a rule, "measures" or "errors", whole; None where there is none."""
    pages = {path.stem: path for path in assets.findings_directory().glob("*.md")}
    pages |= {"measures": assets.measures(), "errors": assets.errors()}
    path = pages.get(rule.removesuffix(".md"))
    return None if path is None else _rendered(path.read_text("utf-8"), set(pages))


def picture(name: str) -> Path | None:
    """The file of a picture that a page shows."""
    found = (assets.findings_directory() / "img").glob("*.png")
    return next((path for path in found if path.name == name), None)


def _rendered(text: str, pages: set[str]) -> str:
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(text)
    for token in _links(tokens):
        written = str(token.attrs.get("href", ""))
        target = written.removeprefix("../").removeprefix("findings/")  # here all lie side by side
        token.attrs["href"] = target
        if not target.startswith("#") and ":" not in target and _name(target) not in pages:
            del token.attrs["href"]  # a page of the project that is not shipped
    for opening, words in pairwise(tokens):
        if opening.type == "heading_open" and opening.tag != "h1":
            opening.attrSet("id", anchor(words.content))
    title = next((each.content for each in tokens if each.type == "inline"), "findings")
    body = markdown.renderer.render(tokens, markdown.options, {})
    return _SHELL.format(title=html.escape(title), body=body)


def _links(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        if token.type == "link_open":
            yield token
        yield from _links(token.children or [])


def _name(target: str) -> str:
    return target.partition("#")[0].removesuffix(".md")
