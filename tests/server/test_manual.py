"""The pages that explain findings, measures and error messages, as the server shows them."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from ampmon_server import assets
from ampmon_server.messages import anchor, entries


PAGES = [
    "errors",
    "measures",
    *sorted(path.stem for path in assets.findings_directory().glob("*.md")),
]


def test_each_page_is_shown_with_what_it_refers_to(client: TestClient) -> None:
    """A page has its title and no Markdown left in it; what it links to on this server and its pictures are there."""
    linked: set[str] = set()
    for name in PAGES:
        answer = client.get(f"/findings/{name}")
        assert answer.status_code == 200, name
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        targets = re.findall(r'(?:src|href)="(?!https?:|data:|#)([^"#]+)', answer.text)
        prose = re.sub(r"<(pre|code)\b.*?</\1>|<[^>]*>", "", answer.text, flags=re.DOTALL)

        assert "<h1>" in answer.text, name
        assert re.findall(r"\]\(|^#+ |^```|\*\*", prose, re.MULTILINE) == [], name
        linked |= {each if each.startswith("/") else f"/findings/{each}" for each in targets}

    for address in linked:
        assert client.get(address).status_code == 200, address


def test_a_definition_is_linked_to_by_its_heading(client: TestClient) -> None:
    """Each section that the page's numbers lead to is on the page of what is measured."""
    words = (assets.web_directory() / "js" / "words.js").read_text("utf-8")
    sections = re.findall(r'"([a-z-]+)"', words.partition("SECTIONS = {")[2].partition("}")[0])
    shown = client.get("/findings/measures").text
    assert len(sections) > 9
    assert [each for each in sections if f'id="{each}"' not in shown] == []


def test_an_error_message_is_linked_to_by_its_anchor(client: TestClient) -> None:
    """The list of findings leads to the error index, its sections to messages, and these to their findings' pages."""
    shown = client.get("/findings/errors").text
    rules = {rule for entry in entries() for rule in entry.findings}
    sections = {anchor(entry.section) for entry in entries()}

    assert [entry.anchor for entry in entries() if f'id="{entry.anchor}"' not in shown] == []
    assert [each for each in sections if f'href="#{each}"' not in shown] == []
    assert [rule for rule in rules if f'href="{rule}.md"' not in shown] == []
    assert 'href="errors.md"' in client.get("/findings/README").text


@pytest.mark.parametrize("name", ["no_such_rule", "%2e%2e%2ftesting", "img"])
def test_there_are_no_other_pages(name: str, client: TestClient) -> None:
    """What is no page of a finding is a 404, or leads elsewhere: no path of a request reaches the file system."""
    assert client.get(f"/findings/{name}").status_code == 404
    assert client.get(f"/findings/img/{name}").status_code == 404
