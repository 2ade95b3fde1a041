"""What a report says of a run, from the server's own answers: its numbers, and its ledger of skips."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from ampmon import wire
from ampmon_server.asking import answering
from ampmon_server.report.agreed import ranks_words
from ampmon_server.report.sections import sections
from ampmon_server.report.told import tell
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from batches import Trainer


RANKS = 8


def _told(directory: Path, trainers: Sequence[tuple[Trainer, Sequence[wire.Update]]]) -> str:
    """The body of the report of what these have sent, in plain spaces."""
    store = Store.open(Settings(data_directory=directory, judging=False))
    for trainer, updates in trainers:
        store.ingest(trainer.batch(updates))
    store.close()
    with answering(data_dir=directory) as asked:
        return sections(tell(asked, str(trainers[0][0].run_id))).replace("\u202f", " ")


def _cells(page: str, name: str) -> list[str]:
    """A column of the ledger."""
    return re.findall(rf'<td data-name="{name}">(.*?)</td>', page)


def test_a_skip_of_several_ranks_is_one_row_that_names_them(tmp_path: Path) -> None:
    """All of them or which; a skip whose ranks do not all fit is left out and counted, as are all that are older."""
    run_id = uuid4()
    trainers = []
    for rank in range(RANKS):
        trainer = Trainer(run_id, rank, world_size=RANKS)
        updates = [trainer.update(skipped=True) for _ in range(150)]
        trainers.append((trainer, [*updates, trainer.update(skipped=rank == 3)]))
    page = _told(tmp_path, trainers)

    whole = 999 // RANKS
    assert _cells(page, "Step") == [str(step) for step in range(150, 149 - whole, -1)]
    assert _cells(page, "Optimizer") == ["SGD, rank 3 of 8", *["SGD, all 8 ranks"] * whole]
    assert f"{151 - 1 - whole} earlier skipped updates not listed." in page


def test_the_newest_skips_are_listed_one_by_one(tmp_path: Path) -> None:
    """200 of them; of a run with one rank none is named."""
    trainer = Trainer()
    page = _told(tmp_path, [(trainer, [trainer.update(skipped=True) for _ in range(230)])])
    assert _cells(page, "Step") == [str(step) for step in range(229, 29, -1)]
    assert set(_cells(page, "Optimizer")) == {"SGD"}
    assert "30 earlier skipped updates not listed." in page


def test_a_scale_that_is_no_number_is_named(tmp_path: Path) -> None:
    """NaN and infinity, in the ledger and among the numbers, where there is something to say."""
    trainer = Trainer()
    inf, nan = float("inf"), float("nan")
    updates = [
        trainer.update(skipped=True, scale=inf, scale_after=nan),
        trainer.update(scale=nan, scale_after=inf),
    ]
    page = _told(tmp_path, [(trainer, updates)])
    assert _cells(page, "Scale") == ["∞ → NaN"]
    assert "<dt>Newest scale</dt><dd>∞</dd>" in page
    assert "<dt>Headroom</dt><dd>–</dd>" in page


@pytest.mark.parametrize(
    ("ranks", "every", "words"),
    [
        ([0], 1, ""),
        ([0, 1], 2, "all 2 ranks"),
        ([0, 2], 4, "ranks 0, 2 of 4"),
        (range(9), 16, "ranks 0, 1, 2, 3, 4, 5, 6, 7, … of 16"),
    ],
)
def test_the_words_for_ranks_are_the_pages(ranks: Sequence[int], every: int, words: str) -> None:
    """As tests/web/agreed.test.mjs has them."""
    assert ranks_words(ranks, every) == words
