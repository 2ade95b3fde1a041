"""A training process that reports to a server and does as many updates as requested."""

from __future__ import annotations

import os
import subprocess
import tempfile

from scripts import Script
from serving import Server


TRAINER = """
import sys, time, torch, ampmon
from ampmon.client import current_run as process
ampmon.init("tests", "trainer")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = ampmon.GradScaler("cpu", init_scale=2.0, growth_interval=40, model=model, monitor=ampmon.Config(every=10))
print(scaler.monitor.run_id, flush=True)
update = 0
for order in sys.stdin:
    for update in range(update, update + int(order)):
        scaler.scale(model(torch.ones(4, 8)).sum()).backward()
        if update % 100 == 99:
            model.bias.grad[0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        ampmon.log({"loss": float("nan") if update == 3 else 1.0 / (update + 1)})
    update += 1
    while process.current()._spool.waiting:  # a kill loses what a slow disk keeps in memory
        time.sleep(0.001)
    print(update, flush=True)
"""


class Trainer:
    """The process, killed at the end of the block if it still runs. ``run_id`` is its run."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        orders, ours = os.pipe()
        self._orders = os.fdopen(ours, "w", buffering=1)
        self.process = Script(
            *("-c", TRAINER), stdin=orders, stdout=subprocess.PIPE, stderr=self._errors
        )
        os.close(orders)
        assert self.process.stdout is not None
        self.run_id = self.process.stdout.readline().strip()

    def train(self, updates: int) -> None:
        """Do ``updates`` more updates, and wait until the last of them is in the spool."""
        print(updates, file=self._orders)
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), self.errors

    def finish(self) -> str:
        """Let the script end, which must succeed, and return what it wrote to stderr."""
        self._orders.close()
        assert self.process.wait() == 0, self.errors
        return self.errors

    @property
    def errors(self) -> str:
        """What it wrote to stderr so far."""
        self._errors.seek(0)
        return self._errors.read()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:  # killed first, because it would finish without orders
            pass
        self._orders.close()
        self._errors.close()


def stored(server: Server, run_id: str) -> int:
    """The number of updates of the run on the server."""
    answer = server.request("GET", f"/api/v1/runs/{run_id}")
    return int(answer.json()["updates"]) if answer.status == 200 else 0
