"""The decision records are few, short, dated and indexed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
RECORDS_MAX = 30
LINES_MAX = 60
HEADINGS = ["Context", "Decision", "Consequences"]
FORM = re.compile(r"# (\d+)\. (.+)\n\n\d{4}-\d{2}-\d{2}(?:, \w+ \d{4}-\d{2}-\d{2})?\n\n## ")


def flaws(name: str, text: str) -> list[str]:
    """The errors in the form of a record."""
    begun = FORM.match(text)
    found = []
    if begun is None or int(begun[1]) != int(name.partition("-")[0]):
        found.append("title and date")
    if re.findall(r"^## (.+)$", text, re.MULTILINE) != HEADINGS:
        found.append("headings")
    if len(text.splitlines()) > LINES_MAX:
        found.append("length")
    return found


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_records_have_one_form(record: Path) -> None:
    """A record has its number, title and date, the three headings in order, and at most 60 lines."""
    assert flaws(record.name, record.read_text()) == []


def test_the_index_lists_each_record_once() -> None:
    """The index lists each record once with its number and title, and there are at most 30."""
    indexed = re.findall(r"^- \[(\d{4}) (.+)\]\((.+)\)$", (FOLDER / "README.md").read_text(), re.M)
    titles = {path.name: path.read_text().partition("\n")[0].split(". ", 1)[1] for path in RECORDS}

    assert len(RECORDS) <= RECORDS_MAX
    assert sorted(name for _, _, name in indexed) == [path.name for path in RECORDS]
    assert {name: title for _, title, name in indexed} == titles
    assert all(name.startswith(f"{number}-") for number, _, name in indexed)


def test_a_record_without_form_would_be_found() -> None:
    """A record with a wrong number, no date, a missing heading or too many lines is reported."""
    good = "# 7. A title\n\n2026-11-24\n\n## Context\n\n## Decision\n\n## Consequences\n"

    assert flaws("0007-a-title.md", good) == []
    assert flaws("0008-a-title.md", good) == ["title and date"]
    assert flaws("0007-a-title.md", good.replace("2026-11-24", "")) == ["title and date"]
    assert flaws("0007-a-title.md", good.replace("## Decision", "")) == ["headings"]
    assert flaws("0007-a-title.md", good + "\n" * LINES_MAX) == ["length"]
