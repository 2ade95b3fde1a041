"""The tools that ampmon is compared with: which are installed, and how they are kept offline.

The extra `bench` installs them. If one is missing, its row in a benchmark says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TypeVar


T = TypeVar("T")

BENCH = ("extra == 'bench'", 'extra == "bench"')
PEERS = ("mlflow", "mlflow-skinny", "tensorboard", "trackio", "transformers", "wandb")


def requirements() -> list[str]:
    """The pip requirements of the extra `bench`."""
    return [
        requirement.partition(";")[0].strip()
        for requirement in metadata.requires("ampmon") or []
        if requirement.partition(";")[2].strip() in BENCH
    ]


def version(peer: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return metadata.version(peer)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """The version of each peer, or "not installed"."""
    return {peer: version(peer) or "not installed" for peer in PEERS}


def missing(peer: str) -> str | None:
    """Why a peer is not measured, or None if it is installed."""
    return None if version(peer) else f"not measured: {peer} is not installed"


def tried(peer: str | None, work: Callable[[], T]) -> tuple[T | None, str | None]:
    """Return the result of a tool's work, or why there is none.

    Another version of a peer may raise anything. Without a ``peer`` the tool is ampmon itself, whose errors are raised.
    """
    if peer and (reason := missing(peer)):
        return None, reason
    try:
        return work(), None
    except Exception as error:
        if not peer:
            raise
        return None, f"not measured: {type(error).__name__}: {error}"


@contextmanager
def quiet(directory: Path) -> Iterator[None]:
    """Make peers imported within it, here and in child processes, work offline and write below ``directory``."""
    before = dict(os.environ)
    home = directory / "home"
    home.mkdir(exist_ok=True)
    os.environ.update(
        HOME=str(home),
        XDG_CACHE_HOME=str(home),
        XDG_CONFIG_HOME=str(home),
        XDG_DATA_HOME=str(home),
        DO_NOT_TRACK="1",
        HF_HUB_OFFLINE="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HOME=str(home),
        MLFLOW_DISABLE_TELEMETRY="true",
        MLFLOW_LOGGING_LEVEL="WARNING",
        TRACKIO_DIR=str(directory / "trackio"),
        WANDB_DIR=str(directory),
        WANDB_ERROR_REPORTING="false",
        WANDB_MODE="offline",
        WANDB_SILENT="true",
    )
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    print("\n".join(requirements()))
