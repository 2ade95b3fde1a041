"""What a report says of a run, from the server's own answers: notices, verdict, numbers and skips."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ampmon import wire
from ampmon_server.client.answering import answering
from ampmon_server.model.notices import NO_UPDATE, notices_of
from ampmon_server.queries.merged_skips import ranks_words
from ampmon_server.report.data import ReportData, gather
from ampmon_server.report.sections import sections
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from batches import Trainer
from databases import provide


RANKS = 8
FEW = ("scale", "scalars")
GOLDEN = json.loads(Path(__file__).with_name("notices.golden.json").read_text(encoding="utf-8"))


@pytest.fixture
def few_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Request two charts only: the simulator takes most of the time of a whole report."""
    monkeypatch.setattr("ampmon_server.report.data.RUN_FIGURES", FEW)


def _answers(
    directory: Path, trainers: Sequence[tuple[Trainer, Sequence[wire.Record]]]
) -> ReportData:
    """Store what these trainers sent, and gather the report's data from a server."""
    provide(directory)
    store = Store.open(Settings(data_directory=directory, judging=False))
    for trainer, records in trainers:
        store.ingest(trainer.batch(records))
    store.close()
    with answering(data_dir=directory) as asked:
        return gather(asked, str(trainers[0][0].run_id))


def _body(data: ReportData) -> str:
    """The body of the report, in plain spaces."""
    return sections(data).replace("\u202f", " ")


def _page(directory: Path, trainers: Sequence[tuple[Trainer, Sequence[wire.Record]]]) -> str:
    return _body(_answers(directory, trainers))


def _cells(page: str, name: str) -> list[str]:
    """A column of the skip ledger."""
    return re.findall(rf'<td data-name="{name}">(.*?)</td>', page)


@pytest.mark.usefixtures("few_charts")
def test_a_skip_of_several_ranks_is_one_row_that_names_them(tmp_path: Path) -> None:
    """A skip of several ranks is one row, which names the rank or says that all skipped."""
    run_id = uuid4()
    trainers = []
    for rank in range(RANKS):
        trainer = Trainer(run_id, rank, world_size=RANKS)
        updates = [trainer.update(skipped=True) for _ in range(150)]
        trainers.append((trainer, [*updates, trainer.update(skipped=rank == 3)]))
    page = _page(tmp_path, trainers)

    assert _cells(page, "Step") == [str(step) for step in range(150, -1, -1)]
    assert _cells(page, "Optimizer") == ["SGD, rank 3 of 8", *["SGD, all 8 ranks"] * 150]


@pytest.mark.usefixtures("few_charts")
def test_the_newest_skips_are_listed_one_by_one(tmp_path: Path) -> None:
    """The newest 200 skips are listed, 180 of them folded; a run of one rank names none."""
    trainer = Trainer()
    page = _page(tmp_path, [(trainer, [trainer.update(skipped=True) for _ in range(230)])])
    assert _cells(page, "Step") == [str(step) for step in range(229, 29, -1)]
    assert set(_cells(page, "Optimizer")) == {"SGD"}
    assert "30 earlier skipped steps not listed." in page
    assert len(_cells(page.partition("<summary>180 earlier</summary>")[2], "Step")) == 180


def test_a_scale_that_is_no_number_is_named(tmp_path: Path) -> None:
    """NaN and infinite scales are shown in the ledger and the numbers; unknown headroom is a dash."""
    trainer = Trainer()
    inf, nan = float("inf"), float("nan")
    updates = [
        trainer.update(skipped=True, scale=inf, scale_after=nan),
        trainer.update(scale=nan, scale_after=inf),
    ]
    page = _page(tmp_path, [(trainer, updates)])
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
def test_it_is_said_which_ranks_agree(ranks: Sequence[int], every: int, words: str) -> None:
    """A shared skip names its ranks: all, or the first eight by number. A one-rank run names none."""
    assert ranks_words(ranks, every) == words


@pytest.mark.parametrize(("fields", "gaps_found", "failed", "said"), GOLDEN["notices"])
def test_notices_say_what_is_missing(
    fields: dict[str, Any], gaps_found: bool, failed: list[str], said: list[str]
) -> None:
    """Notices match the golden file."""
    assert notices_of({**GOLDEN["sound"], **fields}, gaps_found, failed) == said


def test_a_report_says_what_is_to_be_known_before_it_is_trusted(tmp_path: Path) -> None:
    """A report lists the trainer's notices of missing data, with markup escaped."""
    trainer = Trainer()
    memory = trainer.event("spool", kept="memory", why="<b>full</b>", window_ms=250)
    data = _answers(
        tmp_path,
        [(trainer, [*trainer.updates(3), memory, trainer.event("thinned", count=3)])],
    )
    notices = re.findall("<li>(.*?)</li>", _body(data))
    assert notices[0].startswith("Samples of 3 steps were dropped")
    assert "because &lt;b&gt;full&lt;/b&gt;; a killed process may lose the last" in notices[1]
    assert len(notices) == 2


@pytest.mark.usefixtures("few_charts")
def test_the_processes_of_a_run_are_listed_on_request(tmp_path: Path) -> None:
    """A report counts the processes, however many there are, and folds away what it knows of each."""
    run = uuid4()
    trainers = [Trainer(run_id=run, rank=rank, world_size=2) for rank in range(2)]
    page = _page(tmp_path, [(each, each.updates(1)) for each in trainers])
    folded = page.partition("<h2>Reporting processes</h2>")[2]
    assert folded.startswith("<details class='rows'><summary>2 processes</summary><pre>")


def test_a_run_without_an_update_is_not_called_healthy(tmp_path: Path) -> None:
    """A run without an update is not called healthy; with one update it is."""
    assert GOLDEN["no_update"] == NO_UPDATE
    new, begun = Trainer(), Trainer()
    page = _page(tmp_path / "new", [(new, [new.event("init")])])
    assert f"<p class='state'>{NO_UPDATE}</p>" in page
    assert "healthy" not in page
    assert "✓</span> healthy" in _page(tmp_path / "begun", [(begun, begun.updates(1))])


@pytest.mark.usefixtures("few_charts")
def test_a_run_that_trains_on_in_vain_is_asked_to_stop(tmp_path: Path) -> None:
    """While ranks whose skips differ still train, the report says to stop the run, and not after its end."""
    run_id = uuid4()
    trainers = []
    for rank in range(2):
        trainer = Trainer(run_id, rank, world_size=2)
        trainers.append((trainer, trainer.updates(9, skipped=[3] if rank else [])))
    data = _answers(tmp_path, trainers)
    assert data.diagnosis["findings"][0]["rule"] == "ranks_disagree"
    stop = "Stop this run: it cannot recover."
    assert stop in _body(data)
    over = replace(data, run={**data.run, "status": "finished"})
    assert stop not in _body(over)


def _scalers(count: int) -> list[tuple[Trainer, list[wire.Record]]]:
    """A run of ``count`` scalers in one process, each with two updates, the first of them skipped."""
    run_id, attempt_id = uuid4(), uuid4()
    made = []
    for index in range(count):
        trainer = Trainer(run_id, scaler=f"<s>{index}", attempt_id=attempt_id)
        updates = [trainer.update(skipped=True, scale=2.0**index), trainer.update(scale=2.0**index)]
        made.append((trainer, updates))
    return made


def _sick(count: int) -> list[tuple[Trainer, list[wire.Record]]]:
    """The same, with 60 more skips per scaler, so that each has a finding."""
    made = _scalers(count)
    for trainer, updates in made:
        updates.extend(trainer.update(skipped=True) for _ in range(60))
    return made


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    """The report data of a run of two scalers with a finding each."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ampmon_server.report.data.RUN_FIGURES", FEW)
        return _answers(tmp_path_factory.mktemp("two"), _sick(2))


def test_each_scaler_has_charts_of_its_own(two: ReportData) -> None:
    """Each scaler's charts and skips carry its name; logged values share one chart."""
    scales = [each for each in two.charts if each.name.startswith("scale-")]
    drawn = [each.figure["data"][0]["y"] for each in scales]
    page = _body(two)

    assert [each.scaler for each in scales] == ["<s>0", "<s>1"]
    assert drawn[0] != drawn[1]
    titles = [f"'scale-{index}'><h2>Loss scale · &lt;s&gt;{index}</h2>" for index in range(2)]
    assert all(each in page for each in titles)
    assert page.count("data-figure='scalars'") == 1
    assert Counter(_cells(page, "Optimizer")) == {"&lt;s&gt;0: SGD": 61, "&lt;s&gt;1: SGD": 61}
    assert "more scaler" not in page


@pytest.mark.usefixtures("few_charts")
def test_a_finding_says_of_which_scaler_it_is(two: ReportData, tmp_path: Path) -> None:
    """A finding names its scaler only if the run has more than one."""
    page = _body(two)
    assert all(f" · scaler &lt;s&gt;{index}</p>" in page for index in range(2))
    page = _page(tmp_path, _sick(1))
    assert "<div class='finding'>" in page
    assert "scaler &lt;s&gt;" not in page


@pytest.mark.usefixtures("few_charts")
def test_scalers_whose_charts_are_left_out_are_named(tmp_path: Path) -> None:
    """Four scalers have charts, to keep the file small; the others are named."""
    page = _page(tmp_path, _scalers(6))
    assert page.count("<h2>Loss scale") == 4
    assert "Charts of 2 more scalers are left out: &lt;s&gt;4, &lt;s&gt;5<" in page
