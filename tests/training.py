"""A training process that reports to a server."""

from __future__ import annotations

import subprocess
import sys

from serving import Server


TRAINER = """
import sys, time, torch, ampmon
ampmon.init("tests", "trainer")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.named_parameters(), lr=1e-3)
scaler = ampmon.GradScaler("cpu", init_scale=2.0, growth_interval=40, monitor=ampmon.Config(every=10))
print(scaler.monitor.run_id, flush=True)
for update in range(int(sys.argv[1])):
    scaler.scale(model(torch.ones(4, 8)).sum()).backward()
    if update % 100 == 99:
        model.bias.grad[0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    ampmon.log({"loss": float("nan") if update == 3 else 1.0 / (update + 1)})
    time.sleep(float(sys.argv[2]))
"""


class Trainer:
    """A training process, killed at the end if it has not ended by itself; ``run_id`` is the run that it began."""

    def __init__(self, updates: int, pause_s: float) -> None:
        command = [sys.executable, "-c", TRAINER, str(updates), str(pause_s)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.run_id = self.process.stdout.readline().strip()

    def errors(self) -> str:
        """What it wrote to stderr, once it has ended."""
        return self.process.communicate()[1]

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.process.communicate()


def stored(server: Server, run_id: str) -> int:
    """How many updates of the run the server has."""
    answer = server.request("GET", f"/api/v1/runs/{run_id}")
    return int(answer.json()["updates"]) if answer.status == 200 else 0
