"""The identity of a reporting process: ids, ranks, fate, commit and versions."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ampmon import identity, wire
from ampmon.config import resolve
from ampmon.identity.attempt import git_commit, versions
from ampmon.identity.process import process_alive, this_process
from waiting import DEADLINE_S, wait_for


def test_uuid7_is_of_rfc_9562(monkeypatch: pytest.MonkeyPatch) -> None:
    """A UUIDv7 has version, variant and milliseconds since the epoch where RFC 9562 puts them."""
    # A test that moved the clock may have left an id from the future here, which the next id must exceed.
    monkeypatch.setattr("ampmon.identity.ids._last", 0)
    before = time.time_ns() // 1_000_000
    value = identity.uuid7()
    assert (value.version, value.variant) == (7, "specified in RFC 4122")
    assert before <= value.int >> 80 <= time.time_ns() // 1_000_000 + 1


def test_uuid7_only_ever_grows() -> None:
    """Ids of one process increase in the order of creation, and its threads make different ones."""
    values = [identity.uuid7() for _ in range(20_000)]
    assert values == sorted(set(values))
    with ThreadPoolExecutor(4) as pool:
        many = [
            value
            for some in pool.map(lambda _: [identity.uuid7() for _ in range(2000)], range(4))
            for value in some
        ]
    assert len(set(many)) == 8000


def test_forked_children_make_other_ids() -> None:
    """Parent and children of a fork make different ids."""
    with multiprocessing.get_context("fork").Pool(3) as pool:
        values = pool.map(_ids, range(9))
    values.append(_ids(0))
    assert len({value for some in values for value in some}) == 10 * 100


def _ids(_: int) -> list[str]:
    return [identity.uuid7().hex for _ in range(100)]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"RANK": "8", "WORLD_SIZE": "8"}, (0, 1)),
        ({"RANK": "-1", "WORLD_SIZE": "8"}, (0, 1)),
        ({"RANK": "one", "WORLD_SIZE": "8", "PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"RANK": "2"}, (0, 1)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_STEP_ID": "0"}, (5, 6)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "6"}, (0, 1)),
        (
            {
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "6",
                "SLURM_STEP_NUM_TASKS": "1",
                "SLURM_STEP_ID": "0",
            },
            (0, 1),
        ),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, (1, 4)),
        (
            {
                "RANK": "1",
                "WORLD_SIZE": "2",
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "1",
                "SLURM_STEP_ID": "0",
            },
            (1, 2),
        ),
    ],
)
def test_rank_is_the_launcher_s(environment: dict[str, str], expected: tuple[int, int]) -> None:
    """The innermost launcher's rank counts. Incomplete or invalid values, and a batch script outside srun, do not."""
    assert identity.rank_of_process(environment) == expected


SLURM = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}


def test_ranks_derive_the_same_run() -> None:
    """The ranks of a Slurm step derive the same UUIDv8; another job, step or cluster gets another."""
    environments = [
        SLURM,
        {**SLURM, "SLURM_JOB_ID": "78"},
        {**SLURM, "SLURM_STEP_ID": "1"},
        {**SLURM, "SLURM_CLUSTER_NAME": "other"},
    ]
    ids = [identity.shared_run_id(environment) for environment in environments]
    assert len(set(ids)) == len(environments)
    assert {value.version for value in ids if value} == {8}
    assert identity.shared_run_id({**SLURM, "SLURM_PROCID": "1"}) == ids[0]


def test_a_launch_goes_on_with_its_own_run_only() -> None:
    """A launch's UUIDv8 depends on torchrun's id and the run's owner, project and name, so equal ids do not collide."""
    launched = identity.launched_run_id
    environment = {"TORCHELASTIC_RUN_ID": "100"}
    ids = [
        launched("ada", "vision", "train", environment=environment),
        launched("bob", "vision", "train", environment=environment),
        launched("ada", "speech", "train", environment=environment),
        launched("ada", "vision", "tune", environment=environment),
        launched("ada", "vision", "train", environment=environment, generation=1),
        launched("ada", "vision", "train", environment={"TORCHELASTIC_RUN_ID": "101"}),
    ]
    assert len(set(ids)) == len(ids)
    assert {value.version for value in ids if value} == {8}
    assert launched("ada", "vision", "train", environment=environment) == ids[0]
    for none in ({}, {"TORCHELASTIC_RUN_ID": "none"}):
        assert launched("ada", "vision", "train", environment=none) is None


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"TORCHELASTIC_RUN_ID": "100"},
        {"SLURM_JOB_ID": "77"},
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_no_run_is_shared_where_the_launcher_names_none(environment: dict[str, str]) -> None:
    """Without a launcher that identifies all ranks of one launch, no shared run is derived."""
    assert identity.shared_run_id(environment) is None


def test_process_is_alive_until_it_is_killed() -> None:
    """A running process is alive. Once killed it is gone, even as a zombie."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = msgspec.structs.replace(
            this_process(),
            pid=child.pid,
            started=identity.process.start_time(child.pid) or 0,
        )
        assert process.fate() == "alive"
        child.send_signal(signal.SIGKILL)
        wait_for(lambda: process.fate() != "alive")
        assert process.fate() == "gone"
        assert child.returncode is None  # still a zombie
    assert process.fate() == "gone"


def test_reused_pid_is_another_process() -> None:
    """A pid whose process has another start time is a different process."""
    this = this_process()
    assert this.fate() == "alive"
    assert process_alive(os.getpid(), this.started)
    assert not process_alive(os.getpid(), this.started + 1)
    assert msgspec.structs.replace(this, started=this.started + 1).fate() == "gone"


@pytest.mark.parametrize(
    ("change", "fate"),
    [
        ({"boot_id": "before the reboot"}, "gone"),
        ({"boot_id": "its own", "host": "elsewhere"}, "unknown"),
        ({"namespace": 1}, "unknown"),
    ],
)
def test_fate_of_what_cannot_be_seen_is_unknown(change: dict[str, object], fate: str) -> None:
    """A reboot ends a process. On another host or in another container its fate is unknown."""
    assert msgspec.structs.replace(this_process(), **change).fate() == fate


WITHOUT_BOOT_ID = """
import pathlib, sys
import msgspec
from ampmon.identity import process
process._PROC = pathlib.Path("/nowhere")
if len(sys.argv) > 1:
    writer = msgspec.json.decode(sys.argv[1], type=process.ProcessIdentity)
    print(writer.fate(), writer.place() == process.place())
else:
    print(msgspec.json.encode(process.this_process()).decode(), flush=True)
    input()
"""


def test_machines_without_boot_ids_are_distinguished(tmp_path: Path) -> None:
    """They may share a host name. Only a process with the same temporary directory takes a writer for dead."""

    def begin(machine: str, *arguments: str) -> subprocess.Popen[str]:
        (tmp_path / machine).mkdir(exist_ok=True)
        return subprocess.Popen(
            [sys.executable, "-c", WITHOUT_BOOT_ID, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path / machine)},
        )

    def state(machine: str, writer: str) -> str:
        return begin(machine, writer).communicate(timeout=DEADLINE_S)[0].strip()

    with begin("one") as process:
        assert process.stdout is not None
        writer = process.stdout.readline()
        assert state("one", writer) == "alive True"
        process.kill()
    assert state("one", writer) == "gone True"
    assert state("other", writer) == "unknown False"


def test_nothing_is_gone_for_want_of_a_descriptor() -> None:
    """If this process cannot open a file, it does not take a living process for a dead one."""
    this = this_process()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            this.fate()
        with pytest.raises(OSError, match="Too many open files"):
            this_process()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert this.fate() == "alive"


def git(directory: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", *settings, *arguments],
        cwd=directory,
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(directory)},
    )
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="compares with git itself")
def test_commit_is_the_one_that_git_names(tmp_path: Path) -> None:
    """Loose and packed refs, a worktree and a detached head give the same commit as `git rev-parse HEAD`."""
    repository = tmp_path / "repository"
    (repository / "deep" / "down").mkdir(parents=True)
    git(repository, "init")
    assert git_commit(repository) == ""
    git(repository, "commit", "--allow-empty", "-m", "one")
    commit = git(repository, "rev-parse", "HEAD")
    assert git_commit(repository / "deep" / "down") == commit
    git(repository, "pack-refs", "--all")
    assert git_commit(repository) == commit
    git(repository, "worktree", "add", str(tmp_path / "tree"), "-b", "side")
    git(tmp_path / "tree", "commit", "--allow-empty", "-m", "two")
    assert git_commit(tmp_path / "tree") == git(tmp_path / "tree", "rev-parse", "HEAD") != commit
    git(repository, "checkout", "--detach")
    assert git_commit(repository) == commit


@pytest.mark.parametrize(
    "head", [b"ref: ../../../etc/passwd", b"\xff\xfe", b"", b"ref: refs/heads/gone"]
)
def test_broken_repository_has_no_commit(tmp_path: Path, head: bytes) -> None:
    """A damaged .git gives no commit and no exception."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_bytes(head)
    assert git_commit(tmp_path) == ""


def test_versions_load_nothing() -> None:
    """`versions` names Python and loaded packages. It neither names nor loads torch."""
    program = (
        "import sys; from ampmon.identity.attempt import versions; print(versions()); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert "'python'" in done.stdout
    assert "torch" not in done.stdout
    assert versions()["numpy"] == np.__version__


class _Awkward:
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_attempt_describes_this_process_and_survives_the_wire(tmp_path: Path) -> None:
    """The header has host, pid, owner and any configuration. Values that the wire cannot carry become text."""
    config = {
        "lr": 1e-3,
        "path": tmp_path,
        "dtype": np.float16,
        "huge": 2**80,
        "nested": {1: {"a": (1, 2)}},
        "odd": _Awkward(),
        "broken": "\ud800",
    }
    options = resolve(dir=tmp_path, name="a run", config=config, environment={})
    ids = {"run_id": identity.uuid7(), "attempt_id": identity.uuid7()}
    header = identity.new_attempt(options, **ids, started=1, rank=2, world_size=4)
    received = wire.decode(wire.encode(header))
    assert isinstance(received, wire.AttemptHeader)
    assert (received.pid, received.rank, received.world_size) == (os.getpid(), 2, 4)
    assert (received.name, received.host) == ("a run", this_process().host)
    assert received.owner
    assert received.config == {
        "lr": 1e-3,
        "path": str(tmp_path),
        "dtype": "<class 'numpy.float16'>",
        "huge": str(2**80),
        "nested": {"1": {"a": [1, 2]}},
        "odd": "<_Awkward>",
        "broken": "?",
    }
