"""Two Ray actors that train one sharded model in fp16, as verl's do. With "hook" they are monitored.

Each actor gets its rank, FSDP holds the shards, and torch's `ShardedGradScaler` has verl's growth_interval. With "hook"
the actors call `ampmon.auto` at the start, and `finish`.
"""

from __future__ import annotations

import os
import sys

import ray
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

import ampmon


RANKS = 2


@ray.remote
class Worker:
    def __init__(self, rank: int, folder: str) -> None:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS)}
        store = dist.FileStore(f"{folder}/store", RANKS)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
        self.rank = rank

    def train(self, watched: bool) -> list[torch.Tensor]:
        """Return this rank's shards of the weights, then the number of steps."""
        torch.manual_seed(0)
        half = MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16)
        model = FullyShardedDataParallel(
            torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)),
            mixed_precision=half,
            use_orig_params=True,
            device_id=torch.device("cpu"),
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        steps: list[int] = []
        optimizer.register_step_post_hook(lambda *_: steps.append(1))
        scaler = ShardedGradScaler("cpu", growth_interval=400)
        torch.manual_seed(self.rank)
        for update in range(24):
            inputs = torch.randn(16, 8) * (1e4 if update == 9 and self.rank == 1 else 1.0)
            loss = (model(inputs).float() - inputs.sum(1, keepdim=True)).square().mean()
            scaler.scale(loss).backward()
            # No clipping: in torch 2.4 FSDP's norm depends on a shard's place in memory, even without ampmon.
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if watched:
            ampmon.finish()  # Ray kills its workers
        held = [parameter.detach().clone() for parameter in model.parameters()]
        return [*held, torch.tensor(len(steps))]


folder = sys.argv[1]
hook = {"worker_process_setup_hook": "ampmon.auto"} if "hook" in sys.argv else {}
ray.init(num_cpus=RANKS, include_dashboard=False, runtime_env=hook)
workers = [Worker.remote(rank, folder) for rank in range(RANKS)]
ends = ray.get([worker.train.remote(bool(hook)) for worker in workers])
weights = {
    f"{rank}.{place}": each for rank, end in enumerate(ends) for place, each in enumerate(end)
}
torch.save(weights, f"{folder}/weights.pt")
