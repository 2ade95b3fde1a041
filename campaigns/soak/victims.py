"""The processes killed at random: trainers in lanes, the sender that they start, and the server."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import warm
from ampmon import identity
from ampmon.identity.process import start_time
from campaigns.soak.comparison import Training
from campaigns.soak.nursery import DIES_WITH_PARENT, fork, killed
from campaigns.soak.trainer_log import TrainerLog
from scripts import Script
from waiting import DEADLINE_S


_LOOK_S = 0.05
_LOOKS = 20

_Process: TypeAlias = tuple[int, int | None]
Span: TypeAlias = tuple[float, float]
"""A range in seconds from which a time is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """How long each role lives once it is at work, and the pause before the next.

    A victim's ``stretch`` multiplies its lives.
    """

    trainer: Span = (0.0, 5.0)
    sender: Span = (0.0, 1.0)
    server: Span = (0.0, 2.0)
    pause: Span = (0.0, 0.2)
    early: float = 0.15
    """Share of the processes whose lives are counted from their start, so that many die while starting."""
    finishing: float = 0.1
    """Share of the trainings that reach their end, unless they are killed in it."""


class Lane:
    """Runs one training after another and kills each. Most continue the run of the one before."""

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str],
        chance: random.Random,
        lives: Lives,
    ) -> None:
        self.kills = 0
        self.stretch = 1.0
        self.trainings: list[Training] = []
        self.problems: list[str] = []
        self._folder = folder
        self._environment = environment
        self._chance = chance
        self._lives = lives
        self._child: Script | None = None
        self._run_id = identity.uuid7()
        self._end_s = self._begin_s = self._lives_s = 0.0

    def tick(self, now_s: float, *, begin: bool, killing: bool = True) -> bool:
        """Do what is due. Begin or kill a training only if allowed. Return whether one is at work."""
        if self._child is None:
            if begin and now_s >= self._begin_s:
                self._begin(now_s)
        elif self._child.poll() is not None:
            self._ended(now_s)
        elif self._end_s == math.inf:
            if self.trainings[-1].began():
                self._end_s = now_s + self._lives_s
        elif killing and now_s >= self._end_s:
            self.kills += killed(self._child)
            self._ended(now_s, killed=True)
        return self._child is not None

    def _begin(self, now_s: float) -> None:
        chance, finishes = self._chance, self._chance.random() < self._lives.finishing
        resume_step: int | None = None
        if chance.random() < 0.3:
            self._run_id = identity.uuid7()
        elif self.trainings:
            resume_step = self._checkpoint()
        log = self._folder / f"{identity.uuid7().hex}.log"
        self._child = fork(
            "campaigns.soak.trainer:train",
            self._folder / "trainers.log",
            {**self._environment, "AMPMON_RUN_ID": str(self._run_id)},
            log_file=str(log),
            seed=chance.getrandbits(32),
            updates=chance.randrange(1, 20) if finishes else 10_000,
            pause_s=chance.choice([0.005, 0.03]),
            resume_step=resume_step,
            scale=2.0 ** chance.randrange(8, 13),
        )
        self.trainings.append(Training(self._run_id, self._child.pid, resume_step, log))
        self._lives_s = self.stretch * (
            8.0 if finishes and chance.random() < 0.5 else chance.uniform(*self._lives.trainer)
        )
        early = chance.random() < self._lives.early
        self._end_s = now_s + self._lives_s if early else math.inf

    def _checkpoint(self) -> int | None:
        """A step to resume at, which repeats some steps. None leaves it to the server."""
        last = self.trainings[-1]
        done = (last.resume_step or 0) + len(TrainerLog.read(last.log).updates)
        if self._chance.random() < 0.3:
            return None
        return self._chance.randint(max(done - 20, 0), done)

    def end(self) -> None:
        """Kill the training that still runs, if any."""
        if self._child is not None:
            killed(self._child)

    def _ended(self, now_s: float, *, killed: bool = False) -> None:
        self._child = None
        self._begin_s = now_s + self._chance.uniform(*self._lives.pause)
        if not killed and not TrainerLog.read(self.trainings[-1].log).finished:
            self.problems.append("a training ended by itself, see the trainers' log")


class SenderVictim:
    """The sender of ``directory``, whoever started it: found by its command line, elected if it holds the lock.

    ``requests`` returns the number of requests so far. An elected sender is at work once there is another.
    """

    def __init__(
        self, directory: Path, requests: Callable[[], int], chance: random.Random, lives: Lives
    ) -> None:
        self.kills = 0
        self.stretch = 1.0
        self.kills_before = 0
        """Kills of senders that were not elected yet."""
        self._mark = f"\0ampmon.sender\0{directory}\0".encode()
        self._chance = chance
        self._lives = lives
        self._requests = requests
        self._ends: dict[_Process, float] = {}
        """When to kill each; infinite until it is at work."""
        self._elected: dict[_Process, int] = {}
        """The number of requests when each was first seen to be elected."""
        self._looked_s = 0.0
        self._others: dict[int, int] = {}
        """How often each other process was checked."""

    def tick(self, now_s: float, *, killing: bool = True) -> None:
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        ends, self._ends = self._ends, {}
        for pid in self.processes():
            process = pid, start_time(pid)
            end_s = ends.get(process) or self._birth(now_s)
            if end_s == math.inf and self._works(process):
                end_s = now_s + self.stretch * self._chance.uniform(*self._lives.sender)
            self._ends[process] = end_s
            if killing and now_s >= end_s:
                self._kill(pid)

    def _works(self, process: _Process) -> bool:
        if process not in self._elected:
            if _holds_lock(process[0]):
                self._elected[process] = self._requests()
            return False
        return self._requests() > self._elected[process]

    def _birth(self, now_s: float) -> float:
        early = self._chance.random() < self._lives.early
        return now_s + self._chance.uniform(*self._lives.sender) if early else math.inf

    def _kill(self, pid: int) -> None:
        elected = _holds_lock(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.kills += elected
            self.kills_before += not elected

    def end(self) -> None:
        """Stop the senders that still run."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def processes(self) -> list[int]:
        """The senders that run now. A process found `_LOOKS` times to be something else is not checked again."""
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]
        self._others = {pid: self._others[pid] for pid in pids if pid in self._others}
        found = []
        for pid in pids:
            if self._others.get(pid, 0) < _LOOKS:
                if self._mark in _command(pid):
                    found.append(pid)
                else:
                    self._others[pid] = self._others.get(pid, 0) + 1
        return found


def _command(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _holds_lock(pid: int) -> bool:
    try:
        return any(
            os.readlink(each).endswith("lock") for each in Path("/proc", str(pid), "fd").iterdir()
        )
    except OSError:
        return False


class ServerVictim:
    """The server, killed and restarted on its port. It runs the code ``before`` first."""

    def __init__(
        self,
        arguments: list[str],
        folder: Path,
        before: str,
        chance: random.Random,
        lives: Lives,
    ) -> None:
        self.kills = 0
        self.stretch = 1.0
        self.problems: list[str] = []
        self._before = f"{DIES_WITH_PARENT}\n{before}"
        self._arguments = arguments
        self._folder = folder
        self._chance = chance
        self._lives = lives
        self._child: Script | None = None
        self._begin_s = 0.0
        self._end_s = math.inf

    @property
    def _log(self) -> Path:
        return self._folder / f"server-{self.kills}.log"

    def _printed(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def tick(self, now_s: float, *, killing: bool) -> None:
        if self._child is None:
            if now_s >= self._begin_s or not killing:
                self._child = warm.start(self._arguments, self._log, before=self._before)
                early = self._chance.random() < self._lives.early
                self._end_s = self._draw(now_s) if early else math.inf
        elif self._child.poll() is not None:
            self.problems.append(f"a server ended by itself: {self._printed()}")
            self._child = None
        elif self._end_s == math.inf:
            if "ampmon is at" in self._printed():
                self._end_s = self._draw(now_s)
        elif killing and now_s >= self._end_s:
            self.kills += killed(self._child)
            self._child = None
            self._begin_s = now_s + self._chance.uniform(*self._lives.pause)

    def _draw(self, now_s: float) -> float:
        return now_s + self.stretch * self._chance.uniform(*self._lives.server)

    def stop(self) -> None:
        """Stop it with SIGTERM, and kill it if it does not end."""
        if self._child is not None:
            self._child.terminate()
            try:
                self._child.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.problems.append("a server did not end when asked to")
                killed(self._child)
            self._child = None
