"""Exports a generated run of ten million updates to Parquet and prints time and memory (`python -m benchmarks.export`).

`benchmarks.store.filling` puts the run into a store. One process writes the file as the server's route does. Another
one reads the same rows and writes nothing, which shows the store's share of the time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from uuid import UUID

from ampmon_server.exchange import formats
from ampmon_server.exchange.tables import pieces
from ampmon_server.settings import Settings
from ampmon_server.store import Store


BAR_S, BAR_MB = 60, 300


def export(directory: Path, run_id: UUID, file: Path | None) -> None:
    """Write a run's updates to ``file``, or only read them without one. Print seconds, peak MiB of memory, and rows."""
    store = Store.open(Settings(data_directory=directory, judging=False))
    began, rows = time.perf_counter(), 0
    if file is None:
        rows = sum(len(piece["step"]) for piece in pieces(store, run_id, "updates"))
    else:
        with file.open("wb") as output:
            for part in formats.written("parquet", "updates", pieces(store, run_id, "updates")):
                output.write(part)
    took = time.perf_counter() - began
    # Not `ru_maxrss`, which starts at the parent process's value.
    status = Path("/proc/self/status").read_text()
    memory = int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6
    print(f"{took:.1f} {memory:.0f} {rows}")


def _in_a_process(directory: Path, run_id: UUID, *file: str) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.export", "--of", str(directory), str(run_id)]
    done = subprocess.run([*command, *file], check=True, capture_output=True, text=True)
    return [float(each) for each in done.stdout.split()]


def measure(directory: Path, updates: int) -> None:
    """Create the run, export it, and print time and memory beside the bars."""
    from benchmarks.store.filling import fill
    from benchmarks.store.real import real
    from benchmarks.store.track import track

    (run_id,) = fill(Settings(data_directory=directory), [(track(updates), real(8))])
    read_s, read_mb, rows = _in_a_process(directory, run_id)
    file = directory / "run.parquet"
    took_s, memory_mb, _ = _in_a_process(directory, run_id, str(file))
    size = file.stat().st_size / 1e6
    print(
        f"{rows:,.0f} updates to Parquet: {took_s:.1f} s, {memory_mb:.0f} MB, {size:.0f} MB on disk"
    )
    print(f"of which the store's reading: {read_s:.1f} s, {read_mb:.0f} MB")
    print(f"bars, of ten million: {BAR_S} s, {BAR_MB} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the export of a long run to Parquet.")
    parser.add_argument("--updates", type=int, default=10_000_000, help="length (%(default)s)")
    parser.add_argument("--of", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.of:
        directory, run_id, *file = arguments.of
        export(Path(directory), UUID(run_id), Path(file[0]) if file else None)
        return
    with tempfile.TemporaryDirectory(prefix="ampmon-export-") as folder:
        measure(Path(folder), arguments.updates)


if __name__ == "__main__":
    main()
