"""`make screenshots`: picture every view on desktop and phone, light and dark; with --docs, those of docs/img."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser

from ampmon_server.pages.assets import themes
from browser import chromium
from campaigns.pictures.drawn import DRAWN
from campaigns.pictures.measured import Measured, train
from campaigns.pictures.recorded import record
from campaigns.pictures.shots import DESK, PHONE, SHOTS, Runs
from campaigns.pictures.trained import stored
from serving import Server
from web.reader import Reader, enter


ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "img"
WIDTHS = {"desk": DESK[0], "phone": PHONE[0]}
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
IN_DOCS = {
    "hero": ("hero", DESK[0]),
    "run": ("run, top", DESK[0]),
    "charts": ("run, charts", DESK[0]),
    "list": ("list, trained", DESK[0]),
    "compare": ("compare, top", DESK[0]),
    "phone": ("run, top", PHONE[0]),
}
"""Files of docs/img with their view and width. The others are `DRAWN` and the recording."""
RECORDING = "demo"


def main() -> int:
    """Take the pictures. Return the exit code: 1 if a page had problems."""
    given = _arguments()
    if given.docs:
        if drawn := [name for name in DRAWN if _wanted(name, given.only)]:
            draw(train(), drawn, IMAGES)
        if not (_wanted(RECORDING, given.only) or any(_in_docs(given.only))):
            return 0
    store = given.folder / "store"
    runs = stored(store)
    page_errors = []
    with Server(store) as server, chromium() as browser:
        if given.docs and _wanted(RECORDING, given.only):
            page_errors += record(
                browser, server, {theme: _image(f"{RECORDING}.webp", theme) for theme in THEMES}
            )
        photographer = Photographer(browser, server, runs)
        for shot, width, theme, path in _in_docs(given.only) if given.docs else _all(given):
            print(path)
            page_errors += photographer.take(shot, width, theme, path)
    print(*page_errors, sep="\n")
    return 1 if page_errors else 0


Picture = tuple[str, int, Literal["light", "dark"], Path]


def _all(given: argparse.Namespace) -> Iterator[Picture]:
    for name, (where, width), theme in product(SHOTS, WIDTHS.items(), THEMES):
        if _wanted(name, given.only):
            file = f"{name.replace(',', '').replace(' ', '-')}-{where}-{theme}.png"
            yield name, width, theme, given.folder / file


def _in_docs(only: Sequence[str]) -> Iterator[Picture]:
    for (file, (name, width)), theme in product(IN_DOCS.items(), THEMES):
        if _wanted(name, only):
            yield name, width, theme, _image(f"{file}.png", theme)


def draw(measured: Measured, names: Iterable[str], folder: Path) -> None:
    """Draw the named pictures of `DRAWN` in both themes."""
    for name, theme in product(names, THEMES):
        path = _image(f"{name}.svg", theme, folder)
        print(path)
        path.write_text(DRAWN[name](measured, themes()[theme]))


def _image(name: str, theme: str, folder: Path = IMAGES) -> Path:
    stem, _, kind = name.partition(".")
    return folder / (f"{stem}-dark.{kind}" if theme == "dark" else name)


def _wanted(name: str, only: Sequence[str]) -> bool:
    return not only or any(word in name for word in only)


class Photographer:
    """Takes pictures of a server's page, each with a new reader."""

    def __init__(self, browser: Browser, server: Server, runs: Runs) -> None:
        self.browser = browser
        self.server = server
        self.runs = runs

    def take(self, name: str, width: int, theme: Literal["light", "dark"], path: Path) -> list[str]:
        """Take a picture. Return the page's problems, or the error if the view never appeared."""
        reader = Reader(enter(self.browser, self.server), self.server)
        reader.theme(theme)
        try:
            SHOTS[name].arrange(reader, self.runs, width)
        except Exception as error:  # go on with the other views
            return [f"{path}: {str(error).splitlines()[0]}"]
        finally:
            reader.page.screenshot(path=path)
            reader.page.context.close()
        return [f"{path}: {quarrel}" for quarrel in reader.page_errors()]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m campaigns.pictures", description=__doc__)
    parser.add_argument("--only", nargs="+", default=(), help="views by parts of their names")
    parser.add_argument("--docs", action="store_true", help="take those of docs/img")
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "build" / "screenshots",
        help="where they go, and where the trained runs are kept (%(default)s)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
