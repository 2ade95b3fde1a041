"""The entry that a pasted text finds."""

from __future__ import annotations

import pytest

from ampmon_server.cli.doctor.explaining import find
from ampmon_server.pages.messages import entries
from pasted import PASTED, THREADS, UNRELATED


@pytest.mark.parametrize("name", PASTED)
def test_what_people_paste_finds_its_entry(name: str) -> None:
    """A pasted traceback, log line or fragment finds its entry first."""
    text, anchor = PASTED[name]

    assert [entry.anchor for entry in find(text)][:1] == [anchor]


@pytest.mark.parametrize("name", THREADS)
def test_the_entry_of_a_thread_names_its_finding(name: str) -> None:
    """The text of an issue in a framework leads to the finding that answers it."""
    assert THREADS[name] in find(PASTED[name][0])[0].findings


@pytest.mark.parametrize("name", UNRELATED)
def test_what_is_not_in_the_index_finds_nothing(name: str) -> None:
    """Unrelated errors, and text that is no error, find no entry."""
    assert find(UNRELATED[name]) == []


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.anchor)
def test_each_message_finds_its_own_entry(entry: object) -> None:
    """A message from the page finds its own entry, alone or among other lines."""
    for message in entry.messages:  # type: ignore[attr-defined]
        assert find(message)[0] is entry
        assert find(f"epoch 3: 41%|####    | 812/1980\n{message}\n  warnings.warn(\n")[0] is entry
