"""`ampmon import` and `ampmon bundle` with real files and their own data directory."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import pytest

import known_run
from ampmon import wire
from ampmon_server.cli import main
from ampmon_server.settings import Settings
from ampmon_server.store import Store, Wanted
from files.conftest import store_with_known_run
from files.train_logs import always, prints


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A data directory with the known run and no server."""
    folder = tmp_path / "data"
    folder.mkdir()
    store_with_known_run(folder).close()
    return folder


def event_file(folder: Path, steps: Iterable[tuple[float, dict[str, float]]]) -> None:
    """Write an event file with a time and values for each step, as `SummaryWriter` does."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir()
    with (folder / "events.out.tfevents.1790000000.host").open("wb") as file:
        for step, (time, logged) in enumerate(steps):
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in logged.items()]
            event = Event(step=step, wall_time=time, summary=Summary(value=values))
            RecordWriter(file).write(event.SerializeToString())


ANYTHING = [
    (math.inf, {"loss": math.nan}),
    (math.nan, {"": 1.0}),
    (-5.0, {"a\nb": 2.0}),
    (1.79e9, {"loss_scale": math.nan}),
    (1e300, {"loss_scale": math.inf}),
    (1.79e9, {"loss_scale": 8.0}),
]
"""Times, names and values that TensorBoard allows and a run does not."""
USUAL = [
    (
        1.79e9 + step,
        {"train/loss": 2.0 - step / 64, "train/loss_scale": 2.0 ** (16 - min(step, 3))},
    )
    for step in range(60)
]
"""The loss and scale of a loop."""


def test_logs_and_event_files_become_runs(
    directory: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A text log and TensorBoard event files become finished runs with their updates, skips and scalars."""
    log, events = tmp_path / "train.log", tmp_path / "events"
    log.write_text("\n".join(prints(300, always(2.0**14))))
    event_file(events, USUAL)
    way = ["--data-dir", str(directory)]

    assert main(["import", str(log), *way]) == 0
    assert main(["import", str(events), "--name", "seen", "--project", "board", *way]) == 0
    assert main(["import", str(tmp_path / "none.log"), *way]) == 2
    assert main(["import", str(log), str(tmp_path / "skips.csv"), *way]) == 2
    printed = capfd.readouterr()
    assert "seen: 181 records, in the project board" in printed.out
    assert "a CSV cannot be imported" in printed.err

    store = Store.open(Settings(data_directory=directory, judging=False))
    found = {each.name: each for each in store.runs(Wanted()).rows}
    assert (found["train"].updates, found["train"].skipped) == (
        300,
        1,
    )  # the first line follows the first of two skips
    assert (found["seen"].updates, found["seen"].skipped, found["seen"].scale) == (60, 3, 2.0**13)
    assert {found[name].status for name in ("train", "seen")} == {"finished"}
    names = store.scalar_names(UUID(found["seen"].run_id))
    assert [(each.name, each.n) for each in names] == [("train/loss", 60), ("train/loss_scale", 60)]
    store.close()


def test_the_first_run_of_a_data_directory_may_be_imported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a server and a database, an import creates the database. A file that cannot be read creates nothing."""
    log, place = tmp_path / "train.log", tmp_path / "data"
    way = ["import", str(log), "--data-dir", str(place)]
    assert main(way) == 2
    assert not place.exists()
    log.write_text("\n".join(prints(300, always(2.0**14))))
    assert main(way) == 0, capfd.readouterr().err
    assert main(["show", "train", "--data-dir", str(place)]) == 0


def test_any_event_file_can_be_imported(directory: Path, tmp_path: Path) -> None:
    """Scalars with no finite value or time, or a name that cannot be printed, are imported as far as possible."""
    events = tmp_path / "events"
    event_file(events, ANYTHING)
    assert main(["import", str(events), "--name", "any", "--data-dir", str(directory)]) == 0
    store = Store.open(Settings(data_directory=directory, judging=False))
    (found,) = (each for each in store.runs(Wanted()).rows if each.name == "any")
    names = {each.name: each.n for each in store.scalar_names(UUID(found.run_id))}
    store.close()
    assert names == {"loss": 1, "value": 1, "a-b": 1, "loss_scale": 3}
    assert (found.scale, found.skipped) == (8.0, 0)


def test_a_failed_import_leaves_no_run(
    directory: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An export that the server rejects after its first batch, and a damaged event file, store nothing."""
    way = ["--data-dir", str(directory)]
    files = [str(tmp_path / f"{each}.jsonl") for each in ("updates", "events")]
    assert main(["export", "known", "-o", files[0], *way]) == 0
    event = dict.fromkeys(("time", "attempt", "rank", "seq"), 0)
    event |= {"kind": "note", "stream": "0", "scaler": "", "step": None}
    event["detail"] = {"text": "x" * wire.FREE_BYTES_MAX}
    Path(files[1]).write_text(json.dumps(event) + "\n")
    assert main(["import", *files, *way]) == 2
    assert "records[0].detail" in capfd.readouterr().err
    event_file(tmp_path / "board", USUAL)
    (events,) = (tmp_path / "board").iterdir()
    with events.open("ab") as file:
        from tensorboard.summary.writer.record_writer import RecordWriter

        RecordWriter(file).write(b"no event")
    assert main(["import", str(events), *way]) == 2
    assert f"{events}: the file is damaged" in capfd.readouterr().err

    store = Store.open(Settings(data_directory=directory, judging=False))
    assert [each.name for each in store.runs(Wanted()).rows] == ["half", "known"]
    store.close()


def test_a_bundle_holds_what_a_bug_report_needs_and_no_secret(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle has report, diagnosis, rows and package versions, but neither token, secret variable, owner nor host."""
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz")
    file = tmp_path / "bug.zip"

    assert main(["bundle", "known", "--data-dir", str(directory), "-o", str(file)]) == 0
    assert main(["bundle", "known", "--data-dir", str(directory), "-o", str(file)]) == 2
    with zipfile.ZipFile(file) as bundle:
        parts = {name: bundle.read(name).decode() for name in bundle.namelist()}
    assert set(parts) == {
        *("run.json", "diagnosis.json", "report.html", "environment.json"),
        *("updates.jsonl", "skips.jsonl", "events.jsonl", "scalars.jsonl"),
    }
    assert len(parts["updates.jsonl"].splitlines()) == known_run.STEPS - 1
    assert "numpy" in json.loads(parts["environment.json"])["packages"]
    run = json.loads(parts["run.json"])
    assert {run["owner"], *(each["host"] for each in run["identity"]["attempts"])} == {"[removed]"}
    assert " · [removed] · " in parts["report.html"]
    secrets = ["hf_abcdefghijklmnopqrstuvwxyz", (directory / "token").read_text().strip()]
    assert [name for name, text in parts.items() if any(each in text for each in secrets)] == []
