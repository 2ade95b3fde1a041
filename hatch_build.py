"""Builds the documentation site into build/docs, for `make docs` and as a step of each installation and wheel."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


ROOT = Path(__file__).parent
CONFIGURATION = ROOT / "mkdocs.yml"
SITE = ROOT / "build" / "docs"
PLOTLY = SITE / "gallery" / "plotly.min.js"
"""The library of the gallery's reports. A server sends its own copy."""
SOURCES = ("docs", "web/docs", "ampmon", "mkdocs.yml", "hatch_build.py")
PICTURE = re.compile(r'(<img [^>]*src=")([^"]+)(\.png|\.svg|\.webp)("[^>]*>)')
INLINE = re.compile(r"<script>(.+?)</script>", re.DOTALL)
ACCESSIBLE = {
    '"nav",{class:"md-code__nav"}': '"div",{class:"md-code__nav"}',
    '{class:"md-typeset__scrollwrap"}': '{class:"md-typeset__scrollwrap",tabindex:"0"}',
}
"""Code that axe rejects in the theme's script, and its replacement: duplicate landmarks, tables that no key scrolls."""


class DocumentationHook(BuildHookInterface[Any]):
    """Puts the site into the wheel. An editable installation finds it in build/docs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if find_spec("zensical") is None:
            self.app.display_warning("Built without the documentation: Zensical is not installed.")
            return
        build()
        if version != "editable":
            files = (each for each in SITE.rglob("*") if each.is_file() and each != PLOTLY)
            build_data["force_include"] |= {
                str(file): f"ampmon_server/web/docs/{file.relative_to(SITE)}" for file in files
            }


def build() -> None:
    """Build the site unless it is newer than its sources. Raises CalledProcessError for a broken link or anchor."""
    index = SITE / "llms.txt"
    if not index.is_file() or index.stat().st_mtime <= _changed():
        _build(index)
    plotly = find_spec("plotly")  # missing if only a wheel is built
    if plotly and plotly.origin and not PLOTLY.is_file():
        shutil.copyfile(Path(plotly.origin).parent / "package_data" / PLOTLY.name, PLOTLY)


def _build(index: Path) -> None:
    shutil.rmtree(SITE, ignore_errors=True)
    run = "from zensical.main import cli; cli()"
    options = ["build", "--clean", "--strict", "--config-file", str(CONFIGURATION)]
    subprocess.run([sys.executable, "-c", run, *options], cwd=ROOT, check=True)
    for unused in ("404.html", "sitemap.xml"):  # they need the site's address
        (SITE / unused).unlink(missing_ok=True)
    search = json.loads((found := SITE / "search.json").read_text())
    # Each page loads the index. Users do not search for decisions, which were a sixth of it.
    search["items"] = [each for each in search["items"] if "decisions/0" not in each["location"]]
    found.write_text(json.dumps(search, ensure_ascii=False, separators=(",", ":")))
    [script] = SITE.glob("assets/javascripts/bundle.*.js")
    code = script.read_text()
    for rejected, accessible in ACCESSIBLE.items():
        code = code.replace(rejected, accessible)
    script.write_text(code)
    for page in SITE.rglob("*.html"):
        text = INLINE.sub(lambda found, page=page: _outside(found[1], page), page.read_text())
        page.write_text(in_both_themes(text, page.parent))
    index.write_text("\n".join(_index()) + "\n")


def _changed() -> float:
    paths = [path for name in SOURCES for path in ((ROOT / name), *(ROOT / name).rglob("*"))]
    return max(
        path.stat().st_mtime
        for path in paths
        if path.suffix != ".pyc" and path.name != "__pycache__"
    )


def _outside(script: str, page: Path) -> str:
    """Move an inline script to its own file and return the tag. The server's policy allows no inline scripts."""
    name = f"assets/javascripts/inline-{hashlib.sha256(script.encode()).hexdigest()[:12]}.js"
    (SITE / name).write_text(script)
    return f'<script src="{"../" * (len(page.relative_to(SITE).parts) - 1)}{name}"></script>'


def in_both_themes(text: str, folder: Path) -> str:
    """Add the dark sibling of each picture, if ``folder`` has one, to a page's text. The theme shows one of them."""

    def both(found: re.Match[str]) -> str:
        before, stem, kind, after = found.groups()
        light, dark = f"{stem}{kind}", f"{stem}-dark{kind}"
        if not (folder / dark).is_file():
            return found[0]
        return "".join(
            f'{before}{name}" loading="lazy{after}'
            for name in (f"{light}#only-light", f"{dark}#only-dark")
        )

    return PICTURE.sub(both, text)


def _index() -> Iterator[str]:
    """The lines of llms.txt: each page with its first sentence, by section. See llmstxt.org."""
    import yaml  # comes with Zensical

    configuration = yaml.load(CONFIGURATION.read_text(), yaml.BaseLoader)
    yield f"# {configuration['site_name']}\n\n> {configuration['site_description']}"
    for section in configuration["nav"]:
        for title, pages in section.items():
            yield f"\n## {title}\n"
            yield from map(_entry, _leaves(pages))


def _leaves(pages: str | list[Any] | dict[str, Any]) -> Iterator[str]:
    if isinstance(pages, str):
        yield pages
        return
    for page in pages if isinstance(pages, list) else pages.values():
        yield from _leaves(page)


def _entry(name: str) -> str:
    text = (ROOT / "docs" / name).read_text()
    title, _, rest = text.removeprefix("# ").partition("\n")
    rest = re.sub(r"^```.*?^```", "", rest, flags=re.MULTILINE | re.DOTALL)
    paragraph = next((each for each in rest.split("\n\n") if re.match(r"\s*(\w|`[^`])", each)), "")
    sentence = re.split(r"(?<=[.:!?])\s", " ".join(paragraph.split()) + " ")[0]
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", sentence).rstrip(":")
    address = re.sub(r"README\.md$", "index.md", name).removesuffix(".md") + ".html"
    return f"- [{title}]({address})" + (f": {plain}" if plain else "")


if __name__ == "__main__":
    build()
