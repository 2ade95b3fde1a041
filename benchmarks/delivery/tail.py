"""Data lost when a training process is killed at a random instant, beside other tools that log four scalars.

Each tool logs a hundred times a second in its own process, which gets a SIGKILL at a random instant 2 to 5 s after its
first call. Then the tool reads back what is left. A call that had returned is lost if any of its four values is missing
or wrong. The call in progress may be there or not. Either the process alone is killed, and its helpers have ten seconds
to end, or the whole job with everything it started, as by a batch system. A lost call is a hundredth of a second of
training.

All tools are offline or report to a server on this machine, with their own defaults. Several run at once in random
order, so all meet the same machine.
"""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import product
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

from benchmarks import peers
from benchmarks.delivery import FULL, Effort, tools
from benchmarks.delivery.tools import Found
from benchmarks.paired import shown
from benchmarks.report import filled
from benchmarks.server import serving


T = TypeVar("T")

ALONE, JOB = "the process", "the whole job"
BEGIN_WITHIN_S = 120.0
HELPERS_END_WITHIN_S = 10.0
# Slow imports happen once, in the process that the others are forked from.
PRELOADED = ("torch.utils.tensorboard", "mlflow", "wandb", "benchmarks.delivery.tools")


class Case(NamedTuple):
    """One process to kill."""

    tool: str
    killed: str
    number: int


class Outcome(NamedTuple):
    """Calls that had returned, how many of them were lost, and how many values were duplicates or never logged."""

    returned: int
    lost: int
    doubled: int
    problem: str | None = None


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """Two rows for each tool. Takes about ten minutes. Fills ``directory``."""
    return compare(directory, list(tools.TOOLS), effort)


def compare(directory: Path, names: Sequence[str], effort: Effort) -> list[dict[str, Any]]:
    """Two rows for each tool. If a tool is not installed, its rows say so."""
    missing = {
        name: peers.missing(peer) for name in names if (peer := tools.TOOLS[name].peer) is not None
    }
    there = [name for name in names if not missing.get(name)]
    kills = {ALONE: effort.kills, JOB: effort.job_kills}
    cases = [
        Case(name, killed, number)
        for name, killed in product(there, kills)
        for number in range(kills[killed])
    ]
    random.shuffle(cases)
    with _server(directory), ThreadPoolExecutor(effort.at_once) as threads:
        context = get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        futures = [threads.submit(_kill, context, directory, case, effort) for case in cases]
        outcomes = [future.result() for future in shown(futures, "kills")]
    of: dict[tuple[str, str], list[Outcome]] = {}
    for case, outcome in zip(cases, outcomes, strict=True):
        of.setdefault((case.tool, case.killed), []).append(outcome)
    return filled(
        [
            {"what": name, "killed": killed, **_figures(of[name, killed])}
            if (name, killed) in of
            else {"what": name, "killed": killed, "note": missing.get(name)}
            for name, killed in product(names, kills)
        ]
    )


@contextmanager
def _server(directory: Path) -> Iterator[None]:
    """Run a server for ampmon, with its address and token in the environment, and keep peers offline."""
    with serving(directory / "server") as (url, token, _), peers.quiet(directory):
        os.environ.update({tools.URL: url, tools.TOKEN: token})
        yield


def _kill(context: ForkServerContext, directory: Path, case: Case, effort: Effort) -> Outcome:
    kind = "alone" if case.killed == ALONE else "job"
    folder = directory / f"{list(tools.TOOLS).index(case.tool)}-{kind}-{case.number}"
    folder.mkdir()
    logging = (dict(os.environ), tools.log_until_killed, case.tool, folder)
    process = context.Process(target=_at_home, args=logging, name=folder.name)
    alive_s = random.uniform(*effort.alive_s)
    victims: list[int] = []
    process.start()
    try:
        _wait_for_first_call(folder, process)
        time.sleep(alive_s / 2)
        # Not just before the kill, because a scan of all processes slows them down.
        victims = tools.job(folder) if case.killed == JOB else []
        time.sleep(alive_s / 2)
    finally:
        process.kill()
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        process.join()
    returned = _returned(folder)
    if tools.TOOLS[case.tool].peer:
        _wait_for_helpers(folder)
    # A peer may raise anything while reading. That is a result too.
    try:
        with context.Pool(1) as readers:
            reading = (dict(os.environ), tools.read_back, case.tool, folder)
            found = readers.apply(_at_home, reading)
    except Exception as error:
        return Outcome(returned, returned, 0, f"{type(error).__name__}: {error}")
    return Outcome(returned, *compared(returned, found))


def _at_home(
    environment: Mapping[str, str], work: Callable[[str, Path], T], tool: str, folder: Path
) -> T:
    """Do the work in this environment. The fork server may have started in another one."""
    os.environ.clear()
    os.environ.update(environment)
    return work(tool, folder)


def _returned(folder: Path) -> int:
    file = folder / tools.RETURNED
    return file.stat().st_size if file.exists() else 0


def _wait_for_first_call(folder: Path, process: ForkServerProcess) -> None:
    until = time.monotonic() + BEGIN_WITHIN_S
    while not _returned(folder):
        if time.monotonic() > until or not process.is_alive():
            raise RuntimeError(f"{process.name} logged nothing")
        time.sleep(0.02)


def _wait_for_helpers(folder: Path) -> None:
    until = time.monotonic() + HELPERS_END_WITHIN_S
    while tools.job(folder) and time.monotonic() < until:
        time.sleep(0.1)


def compared(returned: int, found: Found) -> tuple[int, int]:
    """How many of the returned calls are lost, and how many values are duplicates or were never logged."""
    kept = {name: Counter(step for step, _ in found.get(name, ())) for name in tools.NAMES}
    right = {
        name: {
            step
            for step, value in found.get(name, ())
            if math.isclose(value, tools.scalars(step)[name], rel_tol=1e-6)
        }
        for name in tools.NAMES
    }
    lost = sum(any(call not in right[name] for name in tools.NAMES) for call in range(returned))
    doubled = sum(
        count - (0 <= step <= returned)
        for counted in kept.values()
        for step, count in counted.items()
    )
    return lost, doubled


def _figures(outcomes: list[Outcome]) -> dict[str, Any]:
    lost = [outcome.lost for outcome in outcomes]
    calls = sum(outcome.returned for outcome in outcomes)
    problems = [outcome.problem for outcome in outcomes if outcome.problem]
    return {
        "kills": len(outcomes),
        "calls": calls,
        "lost_median": median(lost),
        "lost_worst": max(lost),
        "lost_percent": round(100 * sum(lost) / calls, 2),
        "kills_that_lost": sum(each > 0 for each in lost),
        "doubled": sum(outcome.doubled for outcome in outcomes),
        "unreadable": len(problems),
        "each_kill": [outcome[:3] for outcome in outcomes],
        "note": problems[0] if problems else "",
    }
