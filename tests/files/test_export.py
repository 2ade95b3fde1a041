"""An export holds every row, in files that other programs read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from starlette.testclient import TestClient

import known_run
from ampmon import wire
from ampmon_server.cli import main
from ampmon_server.exchange import formats, tables
from ampmon_server.exchange.formats import COLUMNS, TABLES
from ampmon_server.exchange.tables import pieces
from ampmon_server.http.app import create_app
from ampmon_server.http.routes import series
from ampmon_server.http.service import EXPORTS_MAX
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from batches import Trainer, statistics
from files.conftest import store_with_known_run


if TYPE_CHECKING:  # each worker would import it to collect the tests
    import pandas as pd


ROWS = {
    "updates": known_run.STEPS - 1,
    "skips": 2,
    "events": 0,
    "samples": 3 * len(known_run.SAMPLED),
    "scalars": known_run.STEPS - 1,
}
"""Rows of the known run: one update is lost, and two ranks skip one."""

Export = Callable[..., Path]
Held = tuple[Path, Store]


def read(file: Path) -> pd.DataFrame:
    import pandas as pd

    if file.suffix == ".csv":
        return pd.read_csv(file)
    if file.suffix == ".jsonl":
        return pd.read_json(file, lines=True)
    return pd.read_parquet(file)


@pytest.mark.parametrize("what", TABLES)
def test_other_programs_read_every_row(held: Held, written: Export, what: str) -> None:
    """DuckDB and pandas find all columns and rows in CSV, JSON lines and Parquet. Arrow has every row too."""
    import duckdb
    import pandas as pd

    _, store = held
    asked = {
        "csv": "read_csv('{}', header = true, auto_detect = true)",
        "jsonl": "read_json('{}', format = 'newline_delimited')",
        "parquet": "'{}'",
    }
    for kind, reading in asked.items():
        file = written(store, what, kind)
        frame = read(file) if file.stat().st_size else pd.DataFrame(columns=list(COLUMNS[what]))
        assert len(frame) == ROWS[what], kind
        assert list(frame.columns) == list(COLUMNS[what])
        if len(frame):
            found = duckdb.sql(f"SELECT * FROM {reading.format(file)}")
            assert found.columns == list(COLUMNS[what])
            assert len(found.fetchall()) == ROWS[what]
    arrow = pd.DataFrame(_arrow(written(store, what, "arrow")))
    assert len(arrow) == ROWS[what]


def _arrow(file: Path) -> list[dict[str, object]]:
    import pyarrow as pa

    with pa.ipc.open_stream(file) as stream:
        return stream.read_all().to_pylist()


def test_updates_say_what_the_store_holds(held: Held, written: Export) -> None:
    """An updates file has the store's scales, skips and sampled values at their steps."""
    _, store = held
    frame = read(written(store, "updates", "parquet")).set_index("step")
    page = store.updates(known_run.RUN, stream=None, start=0, stop=2**40, limit=1000)

    assert known_run.LOST not in frame.index
    assert frame["scale"].tolist() == page.columns["scale"]
    assert frame.index[frame["skipped"]].tolist() == [known_run.SKIPPED]
    assert frame["zero_fraction"].dropna().index.tolist() == sorted(known_run.SAMPLED)
    assert np.allclose(frame.loc[0, ["zero_fraction", "subnormal_fraction"]].tolist(), [0.1, 0.05])


def test_samples_hold_every_parameter_whole(held: Held, written: Export) -> None:
    """A samples file covers every parameter. Zeros, bins and non-finite values add up to the elements looked at."""
    _, store = held
    frame = read(written(store, "samples", "parquet"))
    bins = frame["histogram"].map(sum)

    assert set(frame["parameter"]) == {each.name for each in known_run.PARAMETERS}
    assert (frame["looked"] == frame["zeros"] + frame["inf"] + frame["nan"] + bins).all()
    overflowed = frame[(frame["step"] == known_run.SKIPPED) & (frame["parameter"] == "head.weight")]
    assert overflowed[["amax_kind", "inf"]].to_numpy().tolist() == [["inf", 3]]


def test_every_piece_is_asked_for(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of any size together hold each row once and in order."""
    _, store = held
    whole = [step for each in pieces(store, known_run.RUN, "updates") for step in each["step"]]
    monkeypatch.setattr(tables, "ROWS", 5)
    small = [list(each["step"]) for each in pieces(store, known_run.RUN, "updates")]

    assert len(small) == 5
    assert [step for each in small for step in each] == whole == sorted(whole)


@pytest.mark.parametrize(("begins", "updates"), [(12, 10), (5, 4)])
def test_samples_of_resumed_runs_come_once(held: Held, begins: int, updates: int) -> None:
    """Samples that a later attempt repeats appear once, from that attempt, in order of step."""
    _, store = held
    first = Trainer()
    store.ingest(first.batch(first.updates(20, sampled=range(20))))
    again = Trainer(run_id=first.run_id, resume_step=begins)
    store.ingest(again.batch(again.updates(updates, sampled=range(updates))))

    found = [
        (row, attempt)
        for each in pieces(store, first.run_id, "samples")
        for row, attempt in zip(each["step"][::2], each["attempt"][::2], strict=True)
    ]
    ends = begins + updates
    assert found == [(step, int(begins <= step < ends)) for step in range(max(20, ends))]


def test_samples_of_long_runs_take_no_more_memory(held: Held) -> None:
    """Reading 256 samples for an export takes about as much memory as reading 32, which are one block."""
    _, store = held
    parameters = tuple(
        wire.Parameter(f"{number}.weight", (80,), "float32") for number in range(200)
    )
    taken = []
    for count in (32, 256):
        trainer = Trainer()
        headers = (trainer.attempt, msgspec.structs.replace(trainer.stream, parameters=parameters))
        sample = statistics(len(parameters)).to_wire()
        updates = [trainer.update(gradients=sample) for _ in range(count)]
        store.ingest(trainer.batch(updates, headers=headers))
        tracemalloc.start()
        try:
            assert sum(1 for _ in store.samples(trainer.run_id)) == count
            taken.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert taken[1] < 4 * taken[0]


_GROWTH = """
import resource
from ampmon_server.exchange.formats import COLUMNS, written

peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
rows = 20_000
piece = {name: [0.123456789] * rows for name in COLUMNS["updates"]}
before = peak()
file = b"".join(written("jsonl", "updates", [piece]))
print(len(file) // rows, (peak() - before) // rows)
"""


def test_json_lines_take_little_memory() -> None:
    """A piece of an export as JSON lines takes less memory than five times its bytes."""
    done = subprocess.run(
        [sys.executable, "-c", _GROWTH], capture_output=True, text=True, check=True
    )
    line, taken = map(int, done.stdout.split())
    assert taken < 5 * line


def test_exports_beyond_a_limit_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit, an export waits, and then gets 503 with Retry-After. One that ends lets another run."""
    monkeypatch.setattr(series, "EXPORT_WAIT_S", 0.01)
    store_with_known_run(tmp_path).close()
    app = create_app(Settings(data_directory=tmp_path, judging=False))
    with TestClient(app, base_url="http://127.0.0.1:8267") as client:
        service = app.state.service
        known = {"Authorization": f"Bearer {service.keys.token}"}
        export = partial(client.get, f"/api/v1/runs/{known_run.RUN}/export", headers=known)
        assert client.portal is not None
        for _ in range(EXPORTS_MAX):
            client.portal.call(service.exports.acquire)
        refused = export()
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert refused.json()["detail"] == "2 exports are running already. Retry later."
        client.portal.call(service.exports.release)
        for _ in range(2):
            assert export().text.count("\n") == ROWS["updates"]


def test_a_cell_of_text_begins_no_formula() -> None:
    """A name that a spreadsheet would compute is written as text in CSV, and unchanged in JSON."""
    row = {name: [None] for name in COLUMNS["scalars"]} | {"name": ["=1+1"]}
    line = b"".join(formats.written("csv", "scalars", [row])).decode().splitlines()[1]

    assert "'=1+1" in line
    assert json.loads(*formats.written("jsonl", "scalars", [row]))["name"] == "=1+1"


def test_the_command_writes_all_or_nothing(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str]
) -> None:
    """`ampmon export` writes all rows, overwrites nothing, and leaves no file for an unknown run.

    A suffix names the format in capitals too. What is no file, such as /dev/null, stays with --force too.
    """
    directory = tmp_path_factory.mktemp("alone")
    store = store_with_known_run(directory)
    store.close()
    file = tmp_path / "run.parquet"
    asked = ["export", "known", "--data-dir", str(directory), "-o", str(file)]

    assert main(asked) == 0
    assert len(read(file)) == ROWS["updates"]
    assert main(asked) == 2
    assert main(["export", "nobody", "--data-dir", str(directory), "-o", f"{file}.csv"]) == 2
    assert main([*asked[:4], "-o", "-", "--what", "skips", "--format", "csv"]) == 0
    printed = capfd.readouterr()
    assert f"{file}: known, 23 rows of updates, " in printed.out
    assert "--force" in printed.err
    assert "there is no run 'nobody'" in printed.err
    assert printed.out.splitlines()[1].startswith("step,time,stream")
    assert [path.name for path in tmp_path.iterdir()] == ["run.parquet"]
    assert main([*asked[:4], "-o", str(tmp_path / "RUN.CSV")]) == 0
    assert (tmp_path / "RUN.CSV").read_text().startswith("step,scaler,attempt,")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert main([*asked[:4], "-o", str(pipe), "--force"]) == 2
    assert pipe.is_fifo()
    assert "--force" not in capfd.readouterr().err


def test_an_export_of_a_running_run_leaves_no_sample_out(tmp_path: Path) -> None:
    """Samples that ingest packs together while an export reads them are all exported, each once."""
    store, trainer = Store.open(Settings(data_directory=tmp_path)), Trainer()

    def send(count: int) -> None:
        store.ingest(trainer.batch(trainer.updates(count, sampled=range(count))))

    send(8)
    send(4)
    exported = store.samples(trainer.run_id)
    found = [next(exported).sample.step]
    for count in (4, 8, 32):
        send(count)
    found += [each.sample.step for each in exported]
    store.close()
    assert found == list(range(56))


@pytest.mark.parametrize("before", [21, 27])
def test_an_export_of_a_resumed_run_repeats_no_sample(tmp_path: Path, before: int) -> None:
    """If ingest packs a second attempt's samples together meanwhile, each sample is exported once."""
    store, first = Store.open(Settings(data_directory=tmp_path)), Trainer()
    again = Trainer(first.run_id, resume_step=20)

    def send(trainer: Trainer, count: int) -> None:
        store.ingest(trainer.batch(trainer.updates(count, sampled=range(count))))

    for count in (26, 32):
        send(first, count)
    for count in (8, 4):
        send(again, count)
    exported = store.samples(first.run_id)
    found = [next(exported) for _ in range(before)]
    send(again, 4)
    found += exported
    store.close()
    named = [(each.attempt, each.sample.step) for each in found]
    assert sorted(set(named)) == sorted(named)
    assert {step for _, step in named} == set(range(58))
