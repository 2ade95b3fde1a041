"""Per-test environment and data directory, and compiled kernels on a GPU.

A pytest plugin without browser or server, so `make gpu` can run tests with it alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from waiting import DEADLINE_S


# Set before torch is loaded, here and in every child process. With more threads, timing and the order of sums in
# some kernels would depend on the machine. With AVX512-FP16, oneDNN sums fp16 differently.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", ONEDNN_MAX_CPU_ISA="AVX512_CORE")

# The time per example depends on the machine. `make test ARGS="--hypothesis-profile=long"` tries more examples.
settings.register_profile("suite", deadline=None, max_examples=10)
settings.register_profile("ci", deadline=None, max_examples=40)
settings.register_profile("long", deadline=None, max_examples=1000)
settings.load_profile("suite")

LAUNCHERS = ("AMPMON_", "SLURM_", "TORCHELASTIC_", "OMPI_")
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The test's own data directory. Variables of outer runs, ranks and servers are removed.

    Runs are offline by default, so that tests start no sender accidentally.
    """
    for name in list(os.environ):
        if name.startswith(LAUNCHERS) or name in RANKS:
            monkeypatch.delenv(name)
    directory = tmp_path / "ampmon"
    monkeypatch.setenv("AMPMON_DIR", str(directory))
    monkeypatch.setenv("AMPMON_MODE", "offline")
    yield directory
    if process := sys.modules.get("ampmon.client.current_run"):
        process.finish(deadline_s=DEADLINE_S)
    if os.environ.get("AMPMON_MODE") == "online":
        _end_sender(directory)


def _end_sender(directory: Path) -> None:
    """End the sender of a data directory, which would otherwise retry as long as records wait for a server."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # another process that has just ended
            words = file.read_bytes().split(b"\0")
            if b"ampmon.sender" in words and str(directory).encode() in words:
                os.kill(int(file.parent.name), signal.SIGTERM)


class AtOnce:
    """Compiles a kernel when it is requested, instead of on a background thread."""

    busy = False

    def __init__(self) -> None:
        self._done: set[Hashable] = set()

    def done(self, key: Hashable, job: Callable[[], object]) -> bool:
        if key not in self._done:
            job()
            self._done.add(key)
        return True


_AT_ONCE = AtOnce()


@pytest.fixture(autouse=True)
def kernels_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, compile kernels before a test's first update, which otherwise would not be measured."""
    torch, loading = sys.modules.get("torch"), sys.modules.get("ampmon.probe.gpu.loading")
    if torch and loading and torch.cuda.is_available():
        monkeypatch.setattr(loading, "_warmer", _AT_ONCE)
