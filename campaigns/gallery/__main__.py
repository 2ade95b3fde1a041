"""`make gallery`: train the ten runs of docs/gallery.md, and write their reports, pictures and the page."""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from ampmon_server.cli.progress import progress
from campaigns.clinic.session import Session
from campaigns.gallery.exhibits import EXHIBITS, page
from campaigns.gallery.reports import make


DOCS = Path(__file__).parents[2] / "docs"


def main() -> int:
    """Return the exit code: 1 if a run lacks the finding it should show."""
    with progress() as bar, tempfile.TemporaryDirectory() as folder:
        task = bar.add_task("training", total=2 * len(EXHIBITS))

        def advance(what: object) -> None:
            bar.update(task, advance=1, description=str(what))

        def made(report: Path) -> None:
            advance(report.stem)
            print(report)

        try:
            session = Session(Path(folder), show=advance)
            make(EXHIBITS, session, DOCS / "gallery", version("ampmon"), made)
        except ValueError as wrong:
            print(f"make gallery: {wrong}", file=sys.stderr)
            return 1
    (DOCS / "gallery.md").write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
