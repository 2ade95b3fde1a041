"""The documentation site as built by `make docs` and served."""

from __future__ import annotations

import gzip
import os
import re
from functools import cache
from mimetypes import MimeTypes
from pathlib import Path
from urllib.parse import unquote, urljoin

import pytest
import yaml
from starlette.testclient import TestClient

import hatch_build
from ampmon_server.model.parameter_statistics import STATISTICS
from ampmon_server.model.terms import TERMS
from ampmon_server.pages import assets
from ampmon_server.pages.messages import anchor, entries


ROOT = Path(__file__).parents[2]
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PAGE = 'data-md-component="content"'
"""Marks pages of the site. The gallery's reports, half of which is Plotly, lack it."""
REFERS = re.compile(r'<(\w+)\b[^>]*?\s(?:href|src)="([^"]+)"')


@cache
def ids(page: Path) -> frozenset[str]:
    return frozenset(re.findall(r'\sid="([^"]+)"', page.read_text()))


def astray(page: Path, address: str) -> bool:
    """Whether an address on a page leads to no file of the site, or to no heading in it."""
    path, _, heading = unquote(address).partition("#")
    target = Path(os.path.normpath(page.parent / path)) if path else page
    is_page = target.suffix == ".html"
    return not target.is_file() or bool(is_page and heading and heading not in ids(target))


def refers(site: Path) -> list[tuple[Path, str, str]]:
    """Each page, tag and address on the site, without links to the dashboard above it."""
    found = [
        (page, *each) for page in site.rglob("*.html") for each in REFERS.findall(page.read_text())
    ]
    return [
        (page, tag, address)
        for page, tag, address in found
        if Path(os.path.normpath(page.parent / address)) != site.parent
    ]


def test_every_link_of_the_site_leads_somewhere(documentation: Path) -> None:
    """Each internal link and picture leads to an existing file and heading."""
    inside = [
        (page, address) for page, _, address in refers(documentation) if ":" not in address[:8]
    ]

    assert len(inside) > 1000
    assert [(page.name, address) for page, address in inside if astray(page, address)] == []


def test_the_site_loads_nothing_from_elsewhere(documentation: Path) -> None:
    """Pages load nothing from other origins and have no inline scripts, which the policy forbids."""
    loaded = [
        (page.name, address)
        for page, tag, address in refers(documentation)
        if tag != "a" and ":" in address[:8] and not address.startswith("data:")
    ]
    inline = [
        page
        for page in documentation.rglob("*.html")
        if re.search(r"<script(?![^>]*(?:src=|application/json))", page.read_text())
        or re.search(r"<[^>]*\son\w+=", page.read_text())
    ]

    assert loaded == []
    assert inline == []


def test_no_page_is_heavy(documentation: Path) -> None:
    """A page with its styles, scripts and search takes at most 300 kB as served."""

    @cache
    def served(path: Path) -> int:
        content = path.read_bytes()
        return len(gzip.compress(content) if len(content) >= 1024 else content)

    search = [documentation / "search.json", *documentation.glob("assets/javascripts/workers/*.js")]
    loaded: dict[Path, set[Path]] = {
        page: {page, *search} for page in documentation.rglob("*.html") if PAGE in page.read_text()
    }
    for page, tag, address in refers(documentation):
        if page in loaded and tag in {"link", "script"} and address.endswith((".css", ".js")):
            loaded[page].add(Path(os.path.normpath(page.parent / address)))
    weights = {page: sum(map(served, files)) for page, files in loaded.items()}

    assert len(weights) == len(list(ROOT.glob("docs/**/*.md")))
    assert min(map(len, loaded.values())) > 9
    assert max(weights.values()) <= 300_000


def test_a_picture_has_its_dark_sibling_beside_it(tmp_path: Path) -> None:
    """A picture with a dark variant becomes two, one per theme. Others stay single."""
    for name in ("a.png", "a-dark.png", "b.png", "c.svg", "c-dark.svg"):
        (tmp_path / name).touch()
    both = hatch_build.in_both_themes(
        '<img alt="A" src="a.png" /><img alt="B" src="b.png" /><img alt="C" src="c.svg" />',
        tmp_path,
    )

    assert re.findall(r'src="([^"]+)"', both) == [
        "a.png#only-light",
        "a-dark.png#only-dark",
        "b.png",
        "c.svg#only-light",
        "c-dark.svg#only-dark",
    ]
    assert both.count('loading="lazy"') == 4


def test_a_link_that_leads_nowhere_would_be_found(documentation: Path) -> None:
    """The check accepts a valid link and finds a missing page, heading or picture."""
    page = documentation / "findings" / "skip_rate.html"

    assert not astray(page, "../measures.html#when-sampled")
    assert astray(page, "../measures.html#when-sampledd")
    assert astray(page, "measures.html")
    assert astray(page, "img/none.png")


def test_every_page_is_in_the_navigation_and_in_llms_txt(documentation: Path) -> None:
    """The navigation lists each page of docs/ once, and llms.txt has a line for each."""
    text = yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.BaseLoader)
    listed = re.findall(r"'([\w/-]+\.md)'", str(text["nav"]))
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")]
    index = (documentation / "llms.txt").read_text()
    addresses = re.findall(r"^- \[.+\]\((\S+)\)", index, re.MULTILINE)

    assert sorted(listed) == sorted(pages)
    assert len(addresses) == len(pages)
    assert [each for each in addresses if not (documentation / each).is_file()] == []


@pytest.mark.usefixtures("documentation")
def test_the_server_shows_the_site(client: TestClient) -> None:
    """The server serves the site's files under /docs with their content types."""
    for name, kind in {
        "": "text/html",
        "index.html": "text/html",
        "findings/": "text/html",
        "theme.js": "text/javascript",
        "search.json": "application/json",
        "findings/img/skip_rate.png": "image/png",
        "img/sawtooth.svg": "image/svg+xml",
        "llms.txt": "text/plain",
        "gallery/report.js": "text/javascript",
    }.items():
        answer = client.get(f"/docs/{name}")
        assert answer.status_code == 200, name
        assert answer.headers["content-type"].startswith(kind)
    assert client.get("/docs").headers["location"] == "docs/"
    plotly = client.get("/docs/gallery/plotly.min.js")
    assert plotly.content == assets.plotly()


@pytest.mark.usefixtures("documentation")
def test_a_picture_is_one_without_a_list_of_types(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slim containers have no /etc/mime.types, and Python's strict types had no WebP before 3.13."""
    monkeypatch.setattr("mimetypes._db", MimeTypes())
    assert client.get("/docs/img/demo.webp").headers["content-type"] == "image/webp"


def test_the_addresses_that_ampmon_prints_lead_to_the_site(
    client: TestClient, documentation: Path
) -> None:
    """Addresses under /findings redirect to the pages of findings, measures and errors."""
    rules = [path.stem for path in ROOT.glob("docs/findings/*.md")]
    for name in (*rules, "measures", "errors", "skip_rate.md"):
        answer = client.get(f"/findings/{name}")
        assert answer.status_code == 308
        assert (documentation / answer.headers["location"].removeprefix("../docs/")).is_file()
    assert client.get("/findings").headers["location"] == "docs/findings/index.html"


def test_a_definition_is_linked_to_by_its_heading(documentation: Path) -> None:
    """The measures page has each section that the dashboard links to."""
    sections = {term.section for term in TERMS.values()}
    assert len(sections) > 4
    sections |= {statistic.section for statistic in STATISTICS.values()}
    assert sections <= ids(documentation / "measures.html")


def test_an_error_message_is_linked_to_by_its_anchor(documentation: Path) -> None:
    """The errors page has the anchor of each entry and section."""
    anchors = {entry.anchor for entry in entries()} | {anchor(entry.section) for entry in entries()}

    assert anchors <= ids(documentation / "errors.html")


@pytest.mark.usefixtures("documentation")
@pytest.mark.parametrize(
    "address", ["/nowhere", "/docs/no_such_page.html", "/docs/findings/no_such_rule.html"]
)
def test_an_unknown_page_is_a_page(client: TestClient, address: str) -> None:
    """A browser gets a 404 page with a link home. Other clients and API paths get a problem document."""
    shown = client.get(address, headers=BROWSER)
    [home] = re.findall(r'href="([^"]*)">Runs', shown.text)

    assert (shown.status_code, shown.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert urljoin(address, home) == "/"
    assert client.get(address).headers["content-type"] == "application/problem+json"
    assert "problem" in client.get("/api/v1/none", headers=BROWSER).headers["content-type"]


def test_an_unknown_page_shows_its_address_as_text(client: TestClient) -> None:
    """The 404 page escapes the address it shows."""
    assert "<b>" not in client.get("/<b>", headers=BROWSER).text


def test_a_site_that_is_not_built_says_how_to_build_it(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the built site, its addresses give 404 and name the command."""
    monkeypatch.setattr(assets, "documentation_directory", lambda: tmp_path / "none")
    for name in ("", "findings/skip_rate.html"):
        answer = client.get(f"/docs/{name}")
        assert answer.status_code == 404
        assert "make docs" in answer.text
