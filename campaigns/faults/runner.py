"""Runs the matrix, or some of it, in several processes forked from a warm one; each does a line at a time."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import struct
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from campaigns.faults.bench import Bench, Cell
from campaigns.faults.matrix import Line, some


_INDEX = struct.Struct("<H")
_TOLD_BYTES_MAX = 4000  # so much is written to a pipe at once, whoever else writes
_PR_SET_PDEATHSIG = 1
LASTING_MOST = 12
"""So many positions of a fault that lasts are tried of all."""
MEMORY = Path("/dev/shm")

Done = Mapping[str, int]
"""By line, the number of its last cell that is done; -1 for all of them."""


def workplace() -> Path:
    """A new folder, in memory where there is such a place: what is proved here needs no disk that turns."""
    return Path(tempfile.mkdtemp(prefix="ampmon-faults-", dir=MEMORY if MEMORY.is_dir() else None))


def run(
    lines: Sequence[Line], *, most: int | None, jobs: int, done: Done
) -> Iterator[dict[str, Any]]:
    """Each cell as it is done. ``most`` positions of each line, or all where it is None; without those ``done``."""
    torch.set_num_threads(1)
    place = workplace()
    workers: list[int] = []
    try:
        bench = Bench(place / "first")
        calls = bench.census()
        yield {"calls": calls, "wrong": bench.close()}
        queue, (told, tell) = _queue(len(lines)), os.pipe()
        work = partial(
            _work, lines=lines, calls=calls, most=most, done=done, queue=queue, tell=tell
        )
        for number in range(jobs):
            workers.append(_fork(partial(work, place / str(number))))
        os.close(tell)
        with open(told) as results:
            yield from map(json.loads, results)
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGTERM)
            os.waitpid(worker, 0)
        shutil.rmtree(place)


def _queue(count: int) -> int:
    """A pipe that holds the number of each line, to be taken by whoever is free."""
    taken, given = os.pipe()
    for index in range(count):
        os.write(given, _INDEX.pack(index))
    os.close(given)
    return taken


def _fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def _work(
    place: Path,
    lines: Sequence[Line],
    calls: Mapping[str, Mapping[str, int]],
    most: int | None,
    done: Done,
    queue: int,
    tell: int,
) -> None:
    bench = Bench(place)
    try:
        while index := os.read(queue, _INDEX.size):
            line = lines[_INDEX.unpack(index)[0]]
            for number in _numbers(line, calls, most, done.get(line.name, 0)):
                cell = bench.run(line, number)
                _tell(tell, line=line.name, number=number, **_result(cell))
                if not cell.reached and most is None:
                    break
    finally:
        _tell(tell, line="all cells together", wrong=bench.close())


def _numbers(
    line: Line, calls: Mapping[str, Mapping[str, int]], most: int | None, done: int
) -> Iterator[int]:
    if done < 0:
        return
    if most is None and line.everywhere:
        yield from range(done + 1, 2**31)
    else:
        called = calls[line.part].get(line.operation, 0)
        yield from (number for number in some(line, called, most or LASTING_MOST) if number > done)


def _result(cell: Cell) -> dict[str, Any]:
    return {"reached": cell.reached, "wrong": cell.wrong, "seconds": cell.seconds}


def _tell(results: int, **what: Any) -> None:
    text = json.dumps(what)
    if len(text) > _TOLD_BYTES_MAX:
        what["wrong"] = [each[-800:] for each in what["wrong"][:2]] + what["wrong"][-1:]
        what["wrong"][-1] = what["wrong"][-1][-1500:]
        text = json.dumps(what)[:_TOLD_BYTES_MAX]
    os.write(results, text.encode() + b"\n")
