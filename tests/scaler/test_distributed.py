"""Ranks share one run without a collective by ampmon, shards differ from replicas, and torch is untouched.

Two processes joined over gloo run all scenarios once; the tests then check what each scenario left behind. Only these
processes import FSDP, which takes two seconds.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

import ampmon
import scripts
from ampmon.numerics.histogram import Statistics
from older_torch import FSDP2, HAS_FSDP2, named
from recording import Recording, recordings
from scaler.test_parity import bits
from serving import free_port


RANKS = 2
MEASURED = ampmon.Config(every=1, sample="all")
GIVEN = "01890a5d-ac96-774b-bcce-b302099a8057"


def work(rank: int, directory: str, port: int) -> None:
    """Run all scenarios, one run each, in one process of the group."""
    torch.set_num_threads(1)
    os.environ["AMPMON_MODE"] = "offline"
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS
    )
    sharded_by_fsdp2 = (sharded, hybrid, sharded_on_rank_0, collectives) if HAS_FSDP2 else ()
    for scenario in (replicated, averaged, synced, *sharded_by_fsdp2, fsdp_scaler, fused_sharded):
        ampmon.init(dir=f"{directory}/{scenario.__name__}", mode="offline")
        scenario(rank)
        ampmon.finish()
    ampmon.init(dir=f"{directory}/given", mode="offline", run_id=GIVEN)
    replicated(rank)
    ampmon.finish()
    os.environ["TORCHELASTIC_RUN_ID"] = "100"
    of_rank_0: dict[str, Any] = {"project": "vision", "name": "large"} if rank == 0 else {}
    ampmon.init(dir=f"{directory}/launched", mode="offline", **of_rank_0)
    ampmon.finish()
    dist.barrier()  # rank 0 holds the store, from which the other learns the run
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory where the ranks left a data directory for each scenario."""
    path = tmp_path_factory.mktemp("ranks")
    program = (
        f"from scaler import test_distributed; test_distributed.start({str(path)!r}, {free_port()})"
    )
    scripts.run("-c", program, cwd=Path(__file__).parents[1])
    return path


def start(directory: str, port: int) -> None:
    """Run `work` on each rank, in forks of this process, which has done the slow imports."""
    importlib.import_module("torch.distributed.fsdp")
    multiprocessing.start_processes(work, (directory, port), nprocs=RANKS, start_method="fork")


def by_rank(directory: Path) -> dict[int, Recording]:
    return {recorded.attempt.rank: recorded for recorded in recordings(directory)}


def train(
    scaler: torch.amp.GradScaler,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    spoil: tuple[int, ...] = (),
) -> None:
    """Run four updates; those in ``spoil`` overflow on this rank only."""
    for update in range(4):
        scaler.scale(model(torch.ones(2, 8)).sum()).backward()
        if update in spoil:
            gradient: Any = next(model.parameters()).grad
            (gradient.to_local() if hasattr(gradient, "to_local") else gradient).view(-1)[0] = (
                float("inf")
            )
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def replicated(rank: int) -> None:
    """Train under DDP, monitored."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(named(model.named_parameters()), lr=0.1)
    train(
        ampmon.GradScaler("cpu", init_scale=4.0, monitor=ampmon.Config(every=1)), model, optimizer
    )


def test_ranks_agree_on_their_run_without_a_collective(directory: Path) -> None:
    """Ranks without a given run id share the one that rank 0 put into the store; each is an attempt of its own."""
    found = recordings(directory / "replicated")
    assert len({recorded.attempt.run_id for recorded in found}) == 1
    assert sorted(recorded.attempt.rank for recorded in found) == [0, 1]
    assert {recorded.attempt.world_size for recorded in found} == {RANKS}


def test_a_rank_that_waits_for_its_run_has_begun_before_that(directory: Path) -> None:
    """An attempt starts no later than its first record, whenever its rank learns the run."""
    for recorded in recordings(directory / "replicated"):
        (begun,) = recorded.events("init")
        assert recorded.attempt.started <= begun.time


def test_replicas_are_sampled_once(directory: Path) -> None:
    """With replicated gradients only rank 0 sends statistics, from the second update on; all ranks send updates."""
    found = by_rank(directory / "replicated")
    assert {rank: len(recorded.updates) for rank, recorded in found.items()} == {0: 4, 1: 4}
    assert [update.gradients is not None for update in found[0].updates] == [
        False,
        True,
        True,
        True,
    ]
    assert [update.gradients is None for update in found[1].updates] == [True] * 4
    assert found[0].header().layout == "replicated"
    assert [parameter.name for parameter in found[0].header().parameters] == ["weight", "bias"]


def averaged(rank: int) -> None:
    """Train under DDP in fp16, on other batches per rank, accumulated or not; assert parity with the stock scaler."""
    for passes, views in ((1, False), (3, True)):
        left = []
        for make in (torch.amp.GradScaler, ampmon.GradScaler):
            monitor = {} if make is torch.amp.GradScaler else {"monitor": MEASURED}
            scaler = make("cpu", init_scale=2.0**10, growth_interval=3, **monitor)
            torch.manual_seed(rank)
            layers = torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
            model = torch.nn.parallel.DistributedDataParallel(
                torch.nn.Sequential(*layers), gradient_as_bucket_view=views
            )
            optimizer = torch.optim.SGD(named(model.named_parameters()), lr=0.1)
            for update in range(4):
                for number in range(passes):
                    last = number == passes - 1
                    with contextlib.nullcontext() if last else model.no_sync():
                        with torch.autocast("cpu", torch.float16):
                            outputs = model(torch.randn(4, 8))
                        scaler.scale(outputs.float().square().mean()).backward()
                if update == 2 and rank == 1:
                    next(model.parameters()).grad[0, 0] = torch.inf
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                assert all(each._backward_hooks is None for each in model.parameters())
            weights = [each.detach().clone() for each in model.parameters()]
            left.append((weights, scaler.state_dict(), torch.rand(2)))
        assert bits(*left)
        assert scaler.monitor.errors == 0


def test_replicas_are_measured_before_they_are_averaged(directory: Path) -> None:
    """Under DDP a sample is of rank 0's gradients before averaging, all on fp16's grid, with `no_sync` and without."""
    recorded = by_rank(directory / "averaged")[0]
    for stream in ("scaler", "scaler-2"):
        sampled = [each.gradients for each in recorded.of(stream) if each.gradients is not None]
        assert len(sampled) == 3
        for statistics in map(Statistics.from_wire, sampled):
            assert statistics.looked.tolist() == [64, 8, 16, 2]
            assert statistics.on_grid.tolist() == [64, 8, 16, 2]


def synced(rank: int) -> None:
    """Train under DDP with views of its buckets, where each pass of an iteration averages over ranks."""
    layer = torch.nn.Linear(4, 1, bias=False)
    model = torch.nn.parallel.DistributedDataParallel(layer, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(named(model.named_parameters()), lr=0.0)
    scaler = ampmon.GradScaler("cpu", init_scale=1.0, monitor=MEASURED)
    for _ in range(3):
        for factor in (4.0, 2.0, 1.0):
            scaler.scale(model(torch.full((1, 4), factor)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def test_each_pass_is_measured_when_each_averages(directory: Path) -> None:
    """Under DDP with views of its buckets, the first pass of an iteration is in the sample as the others are."""
    gradients = by_rank(directory / "synced")[0].updates[2].gradients
    assert gradients is not None
    statistics = Statistics.from_wire(gradients)
    assert statistics.amax.tolist() == [4.0]


def sharded(rank: int, ranks_sampled: tuple[int, ...] | None = None) -> None:
    """Train under FSDP2 with DTensors, where rank 1 alone overflows once."""
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (RANKS,)))
    optimizer = torch.optim.SGD(named(model.named_parameters()), lr=0.1)
    scaler = ampmon.GradScaler(
        "cpu", init_scale=4.0, monitor=ampmon.Config(every=1, sample="all", ranks=ranks_sampled)
    )
    train(scaler, model, optimizer, spoil=(2,) if rank == 1 else ())


def hybrid(rank: int) -> None:
    """Train under FSDP2 with DTensors of which each rank holds a replica."""
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    names = ("replicate", "shard")
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=names))
    optimizer = torch.optim.SGD(named(model.named_parameters()), lr=0.1)
    train(ampmon.GradScaler("cpu", init_scale=4.0, monitor=MEASURED), model, optimizer)


def sharded_on_rank_0(rank: int) -> None:
    """Train under FSDP2, where rank 0 alone samples."""
    sharded(rank, ranks_sampled=(0,))


@FSDP2
def test_shards_are_measured_on_every_rank(directory: Path) -> None:
    """T12: with DTensors each rank measures its own elements, which add up to the whole, and reports a shard."""
    found = by_rank(directory / "sharded")
    assert all(recorded.header().layout == "sharded" for recorded in found.values())
    looked = [recorded.statistics(0).looked.sum() for recorded in found.values()]
    assert sum(looked) == 8 * 8 + 8 + 2 * 8 + 2


@FSDP2
def test_replicas_under_hybrid_sharding_are_measured_once(directory: Path) -> None:
    """Of elements that both ranks hold, the first measures all and the other none, so that they add up to the whole."""
    found = by_rank(directory / "hybrid")
    assert {recorded.header().layout for recorded in found.values()} == {"sharded"}
    looked = [found[rank].statistics(0).looked.tolist() for rank in (0, 1)]
    assert looked == [[8 * 8, 8, 2 * 8, 2], [0, 0, 0, 0]]


@FSDP2
def test_the_rank_that_overflowed_is_the_one_with_the_culprit(directory: Path) -> None:
    """T12: every rank skips, because torch reduces found_inf, but only the rank that overflowed names a parameter."""
    found = by_rank(directory / "sharded")
    assert [
        [update.optimizers[0].skipped for update in found[rank].updates] for rank in (0, 1)
    ] == [[False, False, True, False]] * 2
    assert found[0].names(found[0].updates[2].optimizers[0]) == []
    assert found[1].names(found[1].updates[2].optimizers[0]) == ["0.weight"]


@FSDP2
def test_sampling_on_one_rank_only_does_not_hang(directory: Path) -> None:
    """T12: sampling on rank 0 alone makes no rank wait, because the monitor does not communicate."""
    found = by_rank(directory / "sharded_on_rank_0")
    assert [update.gradients is not None for update in found[0].updates] == [True] * 4
    assert [update.gradients is None for update in found[1].updates] == [True] * 4


def collectives(rank: int) -> None:
    """Assert that a monitored step communicates as often as a stock one, with sampling and attribution."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.debug import CommDebugMode

    counts: list[tuple[float, dict[Any, int]]] = []
    for make in (torch.amp.GradScaler, ampmon.GradScaler):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 8)
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (RANKS,)))
        optimizer = torch.optim.SGD(named(model.named_parameters()), lr=0.1)
        arguments = (
            {}
            if make is torch.amp.GradScaler
            else {"monitor": ampmon.Config(every=1, sample="all")}
        )
        scaler = make("cpu", init_scale=4.0, **arguments)
        communication = CommDebugMode()
        for spoil in (None, float("inf"), None):
            scaler.scale(model(torch.ones(2, 8)).sum()).backward()
            if spoil is not None:
                model.weight.grad.to_local().view(-1)[0] = spoil
            with communication:
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
            counts.append((scaler.get_scale(), dict(communication.get_comm_counts())))
    stock, monitored = counts[:3], counts[3:]
    assert stock == monitored, counts
    assert [scale for scale, _ in stock] == [4.0, 2.0, 2.0]
    assert all(sum(count.values()) > 0 for _, count in stock)


@FSDP2
def test_the_monitor_issues_no_collective(directory: Path) -> None:
    """T12: both ranks ended `collectives`, which asserts as many collectives under ampmon's scaler as under torch's."""
    assert all(len(recorded.updates) == 3 for recorded in recordings(directory / "collectives"))


def fsdp_scaler(rank: int) -> None:
    """Assert that a watched ShardedGradScaler has the scales and trackers of an unwatched one over four updates."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    trackers: dict[bool, list[tuple[float, int]]] = {}
    for watched in (False, True):
        scaler = ShardedGradScaler("cpu", init_scale=8.0, growth_interval=3)
        if watched:
            ampmon.watch(scaler, monitor=ampmon.Config(every=1))
        model = torch.nn.Linear(8, 2)
        optimizer = torch.optim.SGD(named(model.named_parameters()), lr=0.1)
        trackers[watched] = []
        for update in range(4):
            scaler.scale(model(torch.ones(2, 8)).sum()).backward()
            if update == 1:
                model.weight.grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            trackers[watched].append((scaler.get_scale(), scaler._get_growth_tracker()))
    assert trackers[True] == trackers[False] == [(8.0, 1), (4.0, 0), (4.0, 1), (4.0, 2)]


def test_a_growth_tracker_that_is_rebound_is_read_right(directory: Path) -> None:
    """T13: ShardedGradScaler on a CPU replaces its tracker's tensor; records hold the right value each time."""
    recorded = by_rank(directory / "fsdp_scaler")[0]
    assert [(update.scale_after, update.growth_tracker) for update in recorded.updates] == [
        (8.0, 1),
        (4.0, 0),
        (4.0, 1),
        (4.0, 2),
    ]
    assert recorded.updates[1].event == "backoff"
    assert recorded.header().layout == "sharded"


def fused_sharded(rank: int) -> None:
    """T13: assert that a ShardedGradScaler reduces found_inf once on the plain route and never on the fused one."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    reduces: list[bool] = []
    all_reduce = dist.all_reduce

    def counting(*arguments: Any, **keywords: Any) -> Any:
        reduces.append(fused)
        return all_reduce(*arguments, **keywords)

    dist.all_reduce = counting
    for fused in (False, True):
        model = torch.nn.Linear(8, 2)
        optimizer = torch.optim.Adam(model.parameters(), fused=fused)
        scaler = ampmon.watch(
            ShardedGradScaler("cpu", init_scale=8.0), name="fused" if fused else "plain"
        )
        scaler.scale(model(torch.ones(2, 8)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    dist.all_reduce = all_reduce
    assert reduces == [False]
    loss = ShardedGradScaler("cpu").scale(torch.tensor(2.0, dtype=torch.float16))
    assert loss.isinf()
    assert torch.amp.GradScaler("cpu").scale(torch.tensor(2.0, dtype=torch.float16)) == 131072.0


def test_a_fused_optimizer_is_not_reduced_over_ranks(directory: Path) -> None:
    """T13: on both ranks a fused optimizer causes no all-reduce, and an fp16 loss overflows at 65536."""
    for recorded in recordings(directory / "fused_sharded"):
        assert [update.optimizers[0].path for update in recorded.updates] == ["plain", "fused"]


def test_a_run_id_that_was_given_is_kept(directory: Path) -> None:
    """A run id given to `init` takes precedence over the agreed one."""
    assert {str(recorded.attempt.run_id) for recorded in recordings(directory / "given")} == {GIVEN}


def test_ranks_of_a_launch_with_an_id_go_on_with_the_run_of_rank_0(directory: Path) -> None:
    """With an id given to torchrun, ranks without project and name join the run of rank 0, which has them."""
    first, second = by_rank(directory / "launched").values()
    assert {first.attempt.name, second.attempt.name} != {"large"}
    assert first.attempt.run_id == second.attempt.run_id
    assert first.attempt.run_id.version == 8
