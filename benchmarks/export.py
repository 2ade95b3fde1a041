"""Exports a generated run of ten million updates to Parquet and prints time and memory (`python -m benchmarks.export`).

`benchmarks.store.filling` puts the run into a store. One process writes the file as the server's route does. Another
one reads the same rows and writes nothing, which shows the store's share of the time.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from uuid import UUID

from ampmon_server.exchange import formats
from ampmon_server.exchange.tables import pieces
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from benchmarks.delivery.memory import Peak
from benchmarks.processes import apart


BAR_S, BAR_MB = 60, 300


def export(directory: Path, run_id: UUID, file: Path | None) -> tuple[float, float, int]:
    """Write a run's updates to ``file``, or only read them without one. Return seconds, peak MB of memory, and rows."""
    store = Store.open(Settings(data_directory=directory, judging=False))
    began, rows = time.perf_counter(), 0
    if file is None:
        rows = sum(len(piece["step"]) for piece in pieces(store, run_id, "updates"))
    else:
        with file.open("wb") as output:
            for part in formats.written("parquet", "updates", pieces(store, run_id, "updates")):
                output.write(part)
    took, peak = time.perf_counter() - began, Peak()
    peak.see(os.getpid())  # not `ru_maxrss`, which starts at the parent process's value
    return took, peak.rss, rows


def measure(directory: Path, updates: int) -> None:
    """Create the run, export it, and print time and memory beside the bars."""
    from benchmarks.store.filling import fill
    from benchmarks.store.real import real
    from benchmarks.store.track import track

    (run_id,) = fill(Settings(data_directory=directory), [(track(updates), real(8))])
    read_s, read_mb, rows = apart(export, directory, run_id, None)
    file = directory / "run.parquet"
    took_s, memory_mb, _ = apart(export, directory, run_id, file)
    size = file.stat().st_size / 1e6
    print(f"{rows:,} updates to Parquet: {took_s:.1f} s, {memory_mb:.0f} MB, {size:.0f} MB on disk")
    print(f"of which the store's reading: {read_s:.1f} s, {read_mb:.0f} MB")
    print(f"bars, of ten million: {BAR_S} s, {BAR_MB} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the export of a long run to Parquet.")
    parser.add_argument("--updates", type=int, default=10_000_000, help="length (%(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ampmon-export-") as folder:
        measure(Path(folder), arguments.updates)


if __name__ == "__main__":
    main()
