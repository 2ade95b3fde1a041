"""Slow jobs, such as compiling kernels, run on a thread, so training does not wait; the process may fork or end."""

from __future__ import annotations

import threading

import pytest

import scripts
from ampmon.probe.gpu.loading import BackgroundJobs
from waiting import wait_for


def test_a_job_is_not_waited_for() -> None:
    """`done` does not wait; each job runs once, on another thread, in order."""
    warmer, go = BackgroundJobs(), threading.Event()
    ran: list[object] = []

    def job() -> None:
        go.wait()
        ran.append(threading.current_thread() is threading.main_thread())

    def other() -> None:
        ran.append("second")

    for _ in range(3):
        assert not warmer.done("first", job)
    assert not warmer.done("second", other)
    go.set()
    wait_for(lambda: warmer.done("second", other))
    assert warmer.done("first", job)
    assert warmer.done("second", other)
    assert ran == [False, "second"]


def test_a_job_is_no_daemons_whoever_asks() -> None:
    """A job requested by a daemon thread, such as torch's backward thread on a GPU, runs on a non-daemon thread."""
    warmer = BackgroundJobs()
    ran: list[bool] = []

    def job() -> None:
        ran.append(threading.current_thread().daemon)

    asker = threading.Thread(target=lambda: warmer.done("job", job), daemon=True)
    asker.start()
    asker.join()
    wait_for(lambda: warmer.done("job", job))
    assert ran == [False]


def test_a_job_that_fails_is_reported_and_tried_again() -> None:
    """A failed job raises once, with its error as the cause; the next request runs it again, and other jobs run."""
    warmer = BackgroundJobs()
    failures = iter([FileNotFoundError("no compiler")])

    def job() -> None:
        for failure in failures:
            raise failure

    with pytest.raises(RuntimeError, match="no compiler") as raised:
        wait_for(lambda: warmer.done("job", job))
    assert isinstance(raised.value.__cause__, FileNotFoundError)
    wait_for(lambda: warmer.done("other", lambda: True))
    wait_for(lambda: warmer.done("job", job))


def test_training_goes_on_where_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can start, no job runs and nothing is raised; a later request runs it."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    warmer = BackgroundJobs()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert not warmer.done("job", lambda: True)
    wait_for(lambda: warmer.done("job", lambda: True))


FORKED = """
import os, sys, threading, warnings
warnings.simplefilter("ignore")  # from 3.12 on, Python warns of each fork beside a thread
from ampmon.probe.gpu.loading import BackgroundJobs
warmer, parent, go = BackgroundJobs(), os.getpid(), threading.Event()
def job():
    if os.getpid() == parent:
        go.wait()
warmer.done("job", job)
child = os.fork()
if not child:
    while not warmer.done("job", job):
        pass
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
go.set()
"""
ENDED = """
import threading, time
from ampmon.probe.gpu.loading import BackgroundJobs
def job():
    while threading.main_thread().is_alive():
        time.sleep(0.001)
    print("under way", flush=True)
warmer = BackgroundJobs()
warmer.done("job", job)
warmer.done("other", lambda: print("behind", flush=True))
"""


@pytest.mark.parametrize(("code", "said"), [(FORKED, "7"), (ENDED, "under way")])
def test_a_process_may_fork_or_end_meanwhile(code: str, said: str) -> None:
    """A forked child runs the job itself; an exit waits only for the job under way."""
    done = scripts.run("-c", code, preload="torch")
    assert (done.stdout.split("\n"), done.stderr) == ([said, ""], "")
