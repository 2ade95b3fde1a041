"""With little room on disk, samples are dropped first, and skips and events last."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path

import pytest
import torch

import ampmon
from ampmon import wire
from ampmon.client.quota import FULL, LIMIT, ONE_IN, SCARCE, SpoolQuota
from ampmon.client.recorder import Recorder
from ampmon.client.troubles import AmpmonWarning
from ampmon.config import SPOOL_BYTES, SPOOL_BYTES_MIN, resolve
from ampmon.errors import ConfigurationError
from ampmon.system import mounts
from ampmon.training.series import Stream
from recording import Recording, recordings
from waiting import DEADLINE_S


STEPS = (wire.OptimizerStep(optimizer="SGD", path="plain"),)
COLUMN = bytes(8 * 200)
GRADIENTS = wire.Gradients(
    parameters=bytes(4 * 200),
    looked=COLUMN,
    zeros=COLUMN,
    on_grid=COLUMN,
    inf=COLUMN,
    nan=COLUMN,
    amax=COLUMN,
    sum_squares=COLUMN,
    histogram=COLUMN,
)


def update(
    event: wire.UpdateEvent = "steady", gradients: wire.Gradients | None = None
) -> wire.Update:
    return wire.Update(
        stream="scaler",
        seq=0,
        ordinal=0,
        time=0,
        scale=1.0,
        scale_after=1.0,
        growth_tracker=0,
        event=event,
        optimizers=STEPS,
        gradients=gradients,
    )


SKIP = update("backoff", GRADIENTS)
EVENT = wire.Event(stream="", seq=0, time=0, kind="init")
SCALARS = wire.Scalars(stream="scaler", seq=0, ordinal=0, time=0, values={})


@pytest.mark.parametrize("fullness", [0.0, 0.5, SCARCE - 0.01])
def test_with_room_everything_is_kept_whole(fullness: float) -> None:
    """Below three quarters of the quota no record is changed."""
    quota = SpoolQuota()
    for record in (update(gradients=GRADIENTS), SKIP, EVENT, SCALARS):
        assert quota.share(record, fullness) is record
    assert quota.thinned == 0


def test_where_room_is_scarce_one_sample_in_sixteen_is_kept() -> None:
    """From three quarters on, every update is kept but only one sample in 16; records without samples are unchanged."""
    quota = SpoolQuota()
    kept = [quota.share(update(gradients=GRADIENTS), SCARCE) for _ in range(10 * ONE_IN)]
    assert sum(share is not None and share.gradients is not None for share in kept) == 10
    assert [share and share.event for share in kept] == ["steady"] * 10 * ONE_IN
    assert quota.thinned == 10 * (ONE_IN - 1)
    for record in (update(), EVENT, SCALARS):
        assert quota.share(record, SCARCE) is record


def test_where_it_is_full_the_rare_is_kept() -> None:
    """A full spool keeps only skips, dead scales, manual scale changes and events, without samples."""
    quota = SpoolQuota()
    assert quota.share(SKIP, FULL) == update("backoff")
    for event in ("dead", "manual_set"):
        assert quota.share(update(event), FULL) is not None
    assert quota.share(EVENT, FULL) is EVENT
    for record in (update(), update("grow"), update(gradients=GRADIENTS), SCALARS):
        assert quota.share(record, FULL) is None


def test_even_the_rare_has_an_end() -> None:
    """At twice the quota nothing is kept, so a spool cannot fill the disk."""
    assert [SpoolQuota().share(record, LIMIT) for record in (SKIP, EVENT, SCALARS)] == [None] * 3


def test_the_quota_is_an_option() -> None:
    """AMPMON_SPOOL_BYTES sets the quota, its default is 1 GiB, and an invalid value raises an error that names it."""
    assert resolve(environment={}).spool_bytes == SPOOL_BYTES == 2**30
    assert resolve(environment={"AMPMON_SPOOL_BYTES": "5000000"}).spool_bytes == 5_000_000
    for value in ("1GB", "-1", str(SPOOL_BYTES_MIN - 1)):
        with pytest.raises(ConfigurationError, match="AMPMON_SPOOL_BYTES"):
            resolve(environment={"AMPMON_SPOOL_BYTES": value})


def _count(recording: Recording, kind: str) -> int:
    return sum(event.detail["count"] for event in recording.events(kind))


def _put(stream: Stream, ordinal: int, event: wire.UpdateEvent, gradients: wire.Gradients) -> None:
    stream.put(
        wire.Update,
        ordinal=ordinal,
        scale=1.0,
        scale_after=1.0,
        growth_tracker=0,
        event=event,
        optimizers=STEPS,
        gradients=gradients,
    )


def _train(recorder: Recorder) -> tuple[int, int]:
    """Write sampled updates, every fiftieth a skip, until records are dropped; return how many updates and skips.

    Check the remaining room after each update; the maintenance thread does so every second.
    """
    stream = recorder.stream("scaler")
    written = skips = 0
    while recorder.dropped < 60:
        skip = written % 50 == 0
        _put(stream, written, "backoff" if skip else "steady", GRADIENTS)
        recorder._spool.look()
        assert written < 100_000  # a quota that does not hold fills the disk
        written, skips = written + 1, skips + skip
    recorder.finish(DEADLINE_S)
    assert stream.seq == written
    return written, skips


def test_a_run_whose_server_is_away_fills_its_quota_and_no_more(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An offline run at its quota thins samples, then drops records, and counts both; it keeps all skips."""
    monkeypatch.setattr("ampmon.spool.writer.SLOW_S", math.inf)  # also on a busy machine
    environment = {"AMPMON_SPOOL_BYTES": str(2**20), "AMPMON_DIR": str(data_directory)}
    recorder = Recorder(resolve(mode="offline", environment=environment))
    with pytest.warns(AmpmonWarning) as warned:
        written, skips = _train(recorder)
    (recorded,) = recordings(data_directory)
    size = sum(path.stat().st_size for path in data_directory.rglob("*.seg"))
    assert size < 2.5 * 2**20
    assert sum(one.event == "backoff" for one in recorded.updates) == skips
    assert _count(recorded, "dropped") == recorder.dropped == written - len(recorded.updates) > 0
    whole = sum(one.gradients is not None for one in recorded.updates)
    assert _count(recorded, "thinned") == recorder.thinned == len(recorded.updates) - whole > 0
    assert recorded.events("finish")
    said = " ".join(str(warning.message) for warning in warned)
    assert "AMPMON_SPOOL_BYTES" in said
    assert "`ampmon sync`" in said
    assert os.fspath(data_directory) in said


@pytest.mark.filterwarnings("ignore::ampmon.AmpmonWarning")
def test_a_full_spool_takes_no_steady_updates_and_no_scalars(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a full spool, steady updates and logged values are dropped however quick the way is that they take."""
    monkeypatch.setattr("ampmon.client.recorder.SpoolWriter.fullness", FULL)
    parameter = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=4.0)
    for _ in range(12):
        scaler.scale(parameter.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        ampmon.log({"loss": 1.0})
    (recorded,) = recordings(data_directory)
    assert (recorded.updates, recorded.scalars) == ([], [])
    assert _count(recorded, "dropped") == 24


@pytest.mark.filterwarnings("ignore::ampmon.AmpmonWarning")
def test_a_report_of_losses_that_is_lost_is_repeated(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropped records are counted in full, also if an event that counted them was dropped."""
    recorder = Recorder(resolve(mode="offline", dir=data_directory, environment={}))
    with monkeypatch.context() as patched:
        patched.setattr("ampmon.client.recorder.SpoolWriter.fullness", LIMIT)
        recorder.event("lost")
        recorder.report_losses()
    recorder.finish(DEADLINE_S)
    (recorded,) = recordings(data_directory)
    assert _count(recorded, "dropped") == recorder.dropped >= 2


@pytest.mark.filterwarnings("ignore::ampmon.AmpmonWarning")
def test_a_record_without_samples_is_kept_or_dropped(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If memory is full, a record that has no samples to leave out is dropped, and nothing is written for it."""
    recorder = Recorder(resolve(mode="offline", dir=data_directory, environment={}))
    written: list[bytes] = []
    with monkeypatch.context() as patched:
        room = partial(_append_short, written)
        patched.setattr("ampmon.client.recorder.SpoolWriter.append", staticmethod(room))
        recorder.event("lost")
    recorder.finish(DEADLINE_S)
    assert (recorder.dropped, recorder.thinned, written) == (1, 0, [])


def _append_short(written: list[bytes], payload: bytes, **_: str) -> bool:
    """Write a payload of a few bytes, for which there is room even then."""
    if len(payload) < 5:
        written.append(payload)
    return len(payload) < 5


def _sample_of(parameters: int) -> wire.Gradients:
    """Return statistics of this many parameters, all 0, as large as real ones."""
    width = {"parameters": 4, "histogram": 8 * 64, "run_squares": 8 * 3}
    names = wire.Gradients.__struct_fields__
    return wire.Gradients(**{name: bytes(width.get(name, 8) * parameters) for name in names})


def test_an_update_too_large_for_memory_is_kept_without_its_sample(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network mount a sample of 8000 parameters is left out and counted; its update is kept."""
    listed = data_directory.parent / "mountinfo"
    listed.write_text(f"1 0 0:9 / {data_directory.parent} rw - nfs4 nas:/ rw\n")
    monkeypatch.setattr(mounts, "MOUNTS", listed)
    environment = {"AMPMON_DIR": str(data_directory)}
    recorder = Recorder(resolve(mode="offline", environment=environment))
    stream = recorder.stream("scaler")
    for ordinal, parameters in enumerate((8000, 10)):
        _put(stream, ordinal, "backoff", _sample_of(parameters))
    recorder.finish(DEADLINE_S)
    (recorded,) = recordings(data_directory)
    assert [one.event for one in recorded.updates] == ["backoff"] * 2
    assert [one.gradients is not None for one in recorded.updates] == [False, True]
    assert (recorder.dropped, recorder.thinned, _count(recorded, "thinned")) == (0, 1, 1)


def test_losses_are_reported_while_they_happen(data_directory: Path) -> None:
    """Each `dropped` event counts only the records dropped since the last one."""
    recorder = Recorder(
        resolve(mode="offline", environment={"AMPMON_DIR": str(data_directory)}),
    )
    for dropped in (3, 3, 5):
        recorder.dropped = dropped
        recorder.report_losses()
    recorder.dropped += 1
    recorder.finish(DEADLINE_S)
    (recorded,) = recordings(data_directory)
    assert [event.detail["count"] for event in recorded.events("dropped")] == [3, 2, 1]
