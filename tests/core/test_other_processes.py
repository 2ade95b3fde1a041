"""Child processes of a training record attempts of their own or nothing, and end without a hang."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import ampmon
import scripts
from ampmon import wire
from recording import recording, recordings


# No write counts as slow, however busy the machine is, so records go straight to disk.
TRAINING = """
import multiprocessing, os, sys
import torch, ampmon
import ampmon.spool.writer
ampmon.spool.writer.SLOW_S = float("inf")

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(scaler, updates):
    for _ in range(updates):
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

def leave(scaler, updates):
    train(scaler, updates)
    os._exit(3)

if __name__ == "__main__":
    ampmon.init(name="parent")
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    train(scaler, 8)  # a forked child goes on in the plain gear
    for work, updates, status in ((train, 3, 0), (leave, 4, 3)):
        child = multiprocessing.get_context(sys.argv[1]).Process(target=work, args=(scaler, updates))
        child.start()
        child.join()
        assert child.exitcode == status, child.exitcode
    train(scaler, 1)
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.rare)])
def test_children_that_train_are_attempts_of_their_own(
    data_directory: Path, tmp_path: Path, method: str
) -> None:
    """Each child that trains with a given scaler records an attempt of its own; `os._exit` loses no update."""
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    scripts.run(str(script), method)
    recorded = recordings(data_directory)
    finished = {len(one.updates): len(one.events("finish")) for one in recorded}
    assert finished == {9: 1, 3: 1, 4: 0}
    assert len({one.attempt.pid for one in recorded}) == 3


FIRST_IN_CHILD = """
import sys
import torch.multiprocessing

def train(_, fails):
    import torch, ampmon
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    scaler.scale(parameter.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    if fails == "code":
        sys.exit(3)
    if fails:
        raise ValueError("of the test")

if __name__ == "__main__":
    assert "ampmon" not in sys.modules
    try:
        torch.multiprocessing.start_processes(train, (True,), start_method="fork")
    except torch.multiprocessing.ProcessRaisedException:  # another try, in a child that inherits the exception
        torch.multiprocessing.start_processes(train, (False,), start_method="fork")
    try:
        sys.exit(1)
    except SystemExit:
        for method, fails in ("fork", "code"), ("fork", True), ("fork", False), ("spawn", True):
            child = torch.multiprocessing.get_context(method).Process(target=train, args=(0, fails))
            child.start()
            child.join()
"""


def test_a_child_that_imports_ampmon_first_says_how_it_ended(
    data_directory: Path, tmp_path: Path
) -> None:
    """A child of torch.multiprocessing that imports ampmon itself ends its run as finished, or with what ended it."""
    script = tmp_path / "training.py"
    script.write_text(FIRST_IN_CHILD)
    scripts.run(str(script))
    ends = [one.messages[-1] for one in recordings(data_directory)]
    events = sorted(str((end.kind, end.detail)) for end in ends if isinstance(end, wire.Event))
    types = "SystemExit(3)", "ValueError", "ValueError", "ValueError"
    raised = [("exception", {"type": why}) for why in types]
    assert events == [str(each) for each in (*raised, ("finish", {}), ("finish", {}))]


AFTER_A_CAUGHT_EXIT = """
import multiprocessing, sys
import torch, ampmon

parameter = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([parameter], lr=0.1)
scaler = ampmon.GradScaler("cpu", init_scale=2.0)

def train():
    for _ in range(3):
        scaler.scale(parameter.sum()).backward()
        scaler.step(optimizer)
        scaler.update()

train()
try:
    sys.exit(1)
except SystemExit:
    pass
child = multiprocessing.get_context("fork").Process(target=train)
child.start()
child.join()
train()
"""


def test_a_forked_child_ends_without_the_exit_of_its_parent(data_directory: Path) -> None:
    """A `sys.exit(1)` that the parent caught does not end its child, which records as many updates."""
    scripts.run("-c", AFTER_A_CAUGHT_EXIT)
    ends = {len(one.updates): one.messages[-1] for one in recordings(data_directory)}
    assert {size: end.kind for size, end in ends.items() if isinstance(end, wire.Event)} == {
        3: "finish",
        6: "finish",
    }


def test_workers_of_a_data_loader_record_nothing(data_directory: Path) -> None:
    """Workers that are forked in mid-run record nothing and make no spool; the run loses no update."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    for _ in range(2):
        for batch in DataLoader([torch.ones(4)] * 6, batch_size=2, num_workers=2):
            scaler.scale(model(batch).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert [update.ordinal for update in recording(data_directory).updates] == list(range(6))
    assert len(os.listdir(data_directory / "spool")) == 1


FORKED = """
import os, threading, ampmon

def log():
    start.wait()
    ampmon.log({"loss": 1.0})

ampmon.init()
child = os.fork()
if child == 0:
    start = threading.Barrier(8)
    threads = [threading.Thread(target=log) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ampmon.finish()
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_child_whose_threads_record_at_once_is_one_attempt(data_directory: Path) -> None:
    """Threads of a forked child that log at once share one attempt, which keeps every value and is finished."""
    scripts.run("-c", FORKED)
    recorded = recordings(data_directory)
    assert [(len(one.scalars), len(one.events("finish"))) for one in recorded] == [(0, 1), (8, 1)]


ON_A_DEVICE = """
import gc, os, threading, ampmon
from ampmon.client import current_run as process
from ampmon.client.recorder import Recorder

class Record:
    # Stands for one with a CUDA event, whose destructor ends a forked process.
    def submit(self, stream):
        stream.submit(self.ready, self.write, brief=False)

    def ready(self):
        return ready

    def write(self):
        held.set()
        leave.wait()

    def __del__(self):
        if os.getpid() != parent:
            os.write(writing, b"destroyed")

parent, (reading, writing) = os.getpid(), os.pipe()
held, leave = threading.Event(), threading.Event()
ampmon.init()
recorder = process.ensure()
stream = recorder.stream(None)
ready = False
for _ in range(4):
    Record().submit(stream)
    Record().submit(recorder.recent)
ready = True
stream.drain()
held.wait()
ready = False
Record().submit(stream)
child = os.fork()
if child == 0:
    ampmon.log({"loss": 1.0})
    gc.collect()
    os._exit(0)
status = os.waitpid(child, 0)[1]
os.close(writing)
print(status, os.read(reading, 100))
leave.set()
ready = True
"""


def test_a_child_destroys_nothing_that_is_on_its_way_from_a_device() -> None:
    """A forked child destroys no record that waits for a device, in a stream or in the reader's queue."""
    assert scripts.run("-c", ON_A_DEVICE).stdout == "0 b''\n"
