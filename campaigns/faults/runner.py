"""Runs the matrix, or some of it, in processes forked from a warm one. Each takes one line at a time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from campaigns.faults.bench import Bench, Cell
from campaigns.faults.matrix import Line, some
from campaigns.faults.parts import forked


_INDEX = struct.Struct("<H")
_TOLD_BYTES_MAX = 4000  # a write to a pipe is atomic up to this size
LASTING_MOST = 12
"""The number of positions tried of a lasting fault in a complete run."""
MEMORY = Path("/dev/shm")

Done = Mapping[str, int]
"""The number of each line's last finished cell; -1 if the line is finished."""


class Plan(NamedTuple):
    """The cells to run: at most ``most`` calls of each line (None: all), except those ``done``; or one ``call``."""

    lines: Sequence[Line]
    calls: Mapping[str, Mapping[str, int]]
    most: int | None
    done: Done
    call: int | None


def workplace() -> Path:
    """Create a folder, in memory if possible: the matrix needs no real disk."""
    return Path(tempfile.mkdtemp(prefix="ampmon-faults-", dir=MEMORY if MEMORY.is_dir() else None))


def run(
    lines: Sequence[Line], *, most: int | None, jobs: int, done: Done, call: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield each finished cell. The arguments are those of `Plan`.

    A single job works in this process and needs no second warm-up; a single ``call`` needs no census.
    """
    torch.set_num_threads(1)
    place = workplace()
    workers: list[int] = []
    try:
        bench = Bench(place / "first")
        calls = bench.census() if call is None else {}
        plan = Plan(lines, calls, most, done, call)
        if jobs == 1:
            yield {"calls": calls, "wrong": []}
            yield from _cells(bench, plan, range(len(lines)))
            return
        yield {"calls": calls, "wrong": bench.close()}
        queue, (reading, tell) = _queue(len(lines)), os.pipe()
        for number in range(jobs):
            workers.append(forked(partial(_work, place / str(number), plan, queue, tell)))
        os.close(tell)
        with open(reading) as results:
            yield from map(json.loads, results)
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGTERM)
            os.waitpid(worker, 0)
        shutil.rmtree(place)


def _queue(count: int) -> int:
    """A pipe with the number of each line, for free workers to take."""
    taken, given = os.pipe()
    for index in range(count):
        os.write(given, _INDEX.pack(index))
    os.close(given)
    return taken


def _work(place: Path, plan: Plan, queue: int, tell: int) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    taken = (_INDEX.unpack(index)[0] for index in iter(lambda: os.read(queue, _INDEX.size), b""))
    for cell in _cells(Bench(place), plan, taken):
        _tell(tell, **cell)


def _cells(bench: Bench, plan: Plan, indices: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Yield the cells of these lines, then what is wrong with the database they shared."""
    try:
        for line in map(plan.lines.__getitem__, indices):
            for number in _numbers(line, plan):
                cell = bench.run(line, number)
                yield {"line": line.name, "number": number, **_result(cell)}
                if not cell.reached and plan.most is None:
                    break
    finally:
        wrong = bench.close()
    yield {"line": "all cells together", "wrong": wrong}


def _numbers(line: Line, plan: Plan) -> Iterator[int]:
    done = plan.done.get(line.name, 0)
    if done < 0:
        return
    if plan.call is not None:
        yield plan.call
    elif plan.most is None and line.everywhere:
        yield from range(done + 1, 2**31)
    else:
        called = plan.calls[line.part].get(line.operation, 0)
        numbers = some(line, called, plan.most or LASTING_MOST)
        yield from (number for number in numbers if number > done)


def _result(cell: Cell) -> dict[str, Any]:
    return {"reached": cell.reached, "wrong": cell.wrong, "seconds": cell.seconds}


def _tell(results: int, **what: Any) -> None:
    text = json.dumps(what)
    if len(text) > _TOLD_BYTES_MAX:
        what["wrong"] = [each[-800:] for each in what["wrong"][:2]] + what["wrong"][-1:]
        what["wrong"][-1] = what["wrong"][-1][-1500:]
        text = json.dumps(what)[:_TOLD_BYTES_MAX]
    os.write(results, text.encode() + b"\n")
