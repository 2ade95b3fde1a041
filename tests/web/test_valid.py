"""Validity of the page's HTML and CSS, and the links to its style sheets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import html5lib
import pytest
import tinycss2
from tinycss2.ast import Node


WEB = Path(__file__).parents[2] / "web"
SHEETS = sorted((WEB / "css").glob("*.css"))


def faults_of_html(text: str) -> list[str]:
    """The errors that an HTML5 parser finds."""
    parser = html5lib.HTMLParser(strict=False)
    parser.parse(text)
    return [f"{place}: {code} {details}" for place, code, details in parser.errors]


def faults_of_css(text: str) -> list[str]:
    """The rules, declarations and values that break CSS's grammar."""
    return list(_faults(tinycss2.parse_stylesheet(text, skip_comments=True, skip_whitespace=True)))


def _faults(rules: list[Node]) -> Iterator[str]:
    for rule in rules:
        if rule.type == "error":
            yield f"{rule.source_line}: {rule.message}"
        elif rule.type == "at-rule" and rule.lower_at_keyword in {"media", "supports"}:
            yield from _faults(tinycss2.parse_rule_list(rule.content, True, True))
        elif rule.type == "qualified-rule":
            yield from _faults(tinycss2.parse_declaration_list(rule.content, True, True))


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda path: path.name)
def test_the_style_is_valid(sheet: Path) -> None:
    """Every style sheet parses without an error."""
    assert faults_of_css(sheet.read_text(encoding="utf-8")) == []


def test_the_shell_is_valid() -> None:
    """The page as sent parses without an error and links every style sheet except the report's."""
    shell = (WEB / "index.html").read_text(encoding="utf-8")
    assert faults_of_html(shell) == []
    linked = set(re.findall(r'href="css/([\w-]+\.css)"', shell))
    assert linked == {path.name for path in SHEETS} - {"report.css"}


def test_faults_are_found() -> None:
    """An unclosed tag, and declarations without colon or name, are reported."""
    assert faults_of_html("<!doctype html><title>x</title><p><b>open</p>")
    assert faults_of_css("a { color red }")
    assert faults_of_css("@media (width < 9px) { a { : red } }")
