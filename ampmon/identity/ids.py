"""Creates ids that sort by time or that ranks derive alike, and finds the rank that the launcher set."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from collections.abc import Mapping
from uuid import UUID


_lock = threading.Lock()
_last = 0


def uuid7() -> UUID:
    """A UUIDv7 (RFC 9562): milliseconds since the epoch, then random bits. Greater than all before in this process."""
    global _last
    with _lock:
        value = (time.time_ns() // 1_000_000) << 74 | secrets.randbits(74)
        if value <= _last:
            # A random increment, because parent and child continue from the same number after a fork.
            value = _last + 1 + secrets.randbits(32)
        _last = value
    timestamp, random_a, random_b = value >> 74, value >> 62 & 0xFFF, value & (1 << 62) - 1
    return _uuid(7, timestamp << 80 | random_a << 64 | random_b)


def _uuid(version: int, bits: int) -> UUID:
    """The UUID with these 128 bits, except for those that hold its version and variant."""
    return UUID(int=bits & ~(0xF << 76 | 3 << 62) | version << 76 | 2 << 62)


def _renew_lock_after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock_after_fork)


def rank_of_process(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """This process's rank and the number of ranks, as set by torchrun, srun or MPI. (0, 1) without them."""
    for rank_name, size_name in _rank_variables(environment):
        rank = _count(environment.get(rank_name))
        size = _count(environment.get(size_name))
        if rank is not None and size is not None and rank < size:
            return rank, size
    return 0, 1


def _rank_variables(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    names = [("RANK", "WORLD_SIZE")]
    # A batch script outside srun is one process, although Slurm sets the job's number of tasks.
    if "SLURM_STEP_ID" in environment:
        names += [("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("SLURM_PROCID", "SLURM_NTASKS")]
    return [*names, ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")]


def shared_run_id(
    environment: Mapping[str, str] = os.environ, *, generation: int = 0
) -> UUID | None:
    """A run id that every rank derives alike from its job step (a UUIDv8 by hash), or None without one.

    It stays the same when a job is requeued, so the run continues. ``generation`` numbers the runs of a process, the
    same on all ranks.
    """
    job, step = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")
    # A step of one task may be an interactive shell, in which one training follows another.
    if job and step and (_count(environment.get("SLURM_STEP_NUM_TASKS")) or 1) > 1:
        cluster = environment.get("SLURM_CLUSTER_NAME", "")
        return _hashed("slurm", cluster, job, step, *_later(generation))
    return None


def launched_run_id(
    *whose: str, environment: Mapping[str, str] = os.environ, generation: int = 0
) -> UUID | None:
    """A run id derived from torchrun's id of the launch (a UUIDv8 by hash), or None without one.

    It stays the same when a launcher restarts its workers or is restarted. People copy launch ids from each other, so
    ``whose`` tells the runs of one id apart. It may differ between ranks, so one rank must decide.
    """
    launch = environment.get("TORCHELASTIC_RUN_ID")
    # "none" is torchrun's default, which unrelated trainings share.
    if launch and launch != "none":
        return _hashed("torchelastic", launch, *whose, *_later(generation))
    return None


def _later(generation: int) -> list[str]:
    return [str(generation)] if generation else []


def _hashed(*parts: str) -> UUID:
    digest = hashlib.sha256("\0".join(("ampmon", *parts)).encode()).digest()
    return _uuid(8, int.from_bytes(digest[:16], "big"))


def _count(value: str | None) -> int | None:
    try:
        number = int(value or "")
    except ValueError:
        return None
    return number if number >= 0 else None
