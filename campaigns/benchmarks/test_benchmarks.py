"""The benchmarks at a tiny size, without the tools they compare with: they run, and their rows are consistent."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from ampmon_server.demo.model import ModelSize
from benchmarks import (
    gpu_kernels,
    machine,
    networks,
    peers,
    peers_gradients,
    peers_host_cost,
    report,
    whole_step,
)
from benchmarks.__main__ import BENCHMARKS, GROUPS, Group, chosen, run
from benchmarks.paired import Ratio, Work, ratio, ratio_of_totals, rounds_within, take_turns
from recording import recording


PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
TINY = ModelSize(layers=1, heads=1, width=8, context=8, batch=1)


def by_what(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["what"]: row for row in rows}


def same_columns(rows: list[dict[str, Any]]) -> bool:
    return len({tuple(row) for row in rows}) == 1


@pytest.fixture
def no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that none of the other tools is installed."""
    monkeypatch.setattr(peers, "version", lambda peer: None)


def test_make_bench_finds_all_that_it_imports() -> None:
    """`make bench ARGS=--help` imports everything it needs and lists every group."""
    command = ["make", "--no-print-directory", "bench", "ARGS=--help"]
    done = subprocess.run(
        command, check=False, cwd=PYPROJECT.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in GROUPS)


def test_a_benchmark_that_fails_leaves_the_others_figures() -> None:
    """A failing benchmark of a group is left out of its figures, and those of the others are kept."""

    def fail(place: Path) -> list[dict[str, Any]]:
        raise OSError(place)

    failing, good = ModuleType("failing"), ModuleType("good")
    failing.measure, good.measure = fail, lambda place: [{"us": 1}]  # type: ignore[attr-defined]
    both = {"failing": report.Benchmark("", failing), "good": report.Benchmark("", good)}

    measured = run(Group("Two", "make bench", both), {})

    assert measured["good"] == [{"us": 1}]
    assert "failing" not in measured


def test_a_ratio_is_found_through_noise_that_both_share() -> None:
    """When noise affects both times of a pair alike, the median ratio is exact and its interval a point."""
    disturbed = [1.0, 7.0, 1.0, 3.0]

    found = ratio([2 * time for time in disturbed], disturbed)

    assert found == Ratio(2.0, 2.0, 2.0)


def test_the_ratio_of_totals_sees_what_few_turns_pay() -> None:
    """A tenth of the turns at double cost adds 10 % to the total, and nothing to the median."""
    stock = [1.0] * 100
    paying = [2.0 if turn % 10 == 0 else 1.0 for turn in range(100)]

    total = ratio_of_totals(paying, stock)

    assert ratio(paying, stock).value == 1.0
    assert total.value == pytest.approx(1.1)
    assert 1.03 < total.low < 1.1 < total.high < 1.18


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [((1.0, 1.01), "yes"), ((1.02, 1.03), "no"), ((1.0, 1.02), "not told apart")],
)
def test_a_bar_holds_only_where_the_whole_interval_does(
    interval: tuple[float, float], verdict: str
) -> None:
    """An interval below the bar of 1.01 passes, one above it fails, and one across it is inconclusive."""
    low, high = interval

    assert Ratio((low + high) / 2, low, high).verdict(1.01) == verdict


def test_works_take_turns() -> None:
    """Each work runs once per round and once for warm-up, and has a time for each round."""
    ran: list[str] = []
    works = {name: partial(ran.append, name) for name in "ab"}

    times = take_turns(works, 3, "turns")

    assert sorted(ran) == ["a"] * 4 + ["b"] * 4
    assert [len(taken) for taken in times.values()] == [3, 3]
    assert rounds_within(works, limit_s=0.0, least=2) == 2


def test_gradients_are_compared_without_peers(tmp_path: Path, no_peers: None) -> None:
    """ampmon's rows have figures and the number of elements read; a missing tool's row says it is not installed."""
    gradients = [torch.randn(30_000), torch.randn(7, 5)]

    rows = peers_gradients.compare(gradients, tmp_path, peers_gradients.TOOLS, rounds=2)

    named = by_what(rows)
    assert same_columns(rows)
    assert named['ampmon, sample="all"']["elements"] == 30_035
    assert 16_384 <= named["ampmon, default"]["elements"] - 35 < 30_000
    assert named["ampmon, default"]["bar"] == 0.3
    assert named["wandb.watch"]["ratio"] is None
    assert named["wandb.watch"]["note"] == "not measured: wandb is not installed"


def test_a_peer_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    """An exception from a peer's start goes into its row; one from ampmon is raised."""
    broken = peers_gradients.Tool(lambda gradients, directory: 1 / 0, peer="pytest")  # type: ignore[arg-type, return-value]
    control = {peers_gradients.CONTROL: peers_gradients.TOOLS[peers_gradients.CONTROL]}
    gradients = [torch.ones(10)]

    rows = peers_gradients.compare(gradients, tmp_path, control | {"broken": broken}, rounds=2)

    assert by_what(rows)["broken"]["note"] == "not measured: ZeroDivisionError: division by zero"
    with pytest.raises(ZeroDivisionError):
        peers_gradients.compare(
            gradients, tmp_path, control | {"ours": broken._replace(peer=None)}, rounds=2
        )


def test_given_gradients_reach_hooks_unchanged() -> None:
    """A parameter's hook sees the given gradient once per backward pass, and nothing accumulates."""
    gradients = [torch.randn(3), torch.randn(2, 2)]
    model = peers_gradients.GivenGradients(gradients)
    seen: list[torch.Tensor] = []
    for weight in model.weights:
        weight.register_hook(seen.append)

    model.backward()

    assert {id(gradient) for gradient in seen} == {id(gradient) for gradient in gradients}
    assert all(weight.grad is None for weight in model.weights)


def test_host_times_are_compared_without_peers(tmp_path: Path, no_peers: None) -> None:
    """Without peers there are rows for two numbers of tensors, rested and swept, and a note for each peer."""
    names = ["nothing, the noise", "trackio"]

    rows = peers_host_cost.compare(tmp_path, names, peers_host_cost.Effort(3, 2, 0.0))

    measured = [row for row in rows if row["what"] == "nothing, the noise"]
    assert same_columns(rows)
    assert [(row["caches"], row["tensors"]) for row in measured] == [
        *(("rested", 6), ("rested", 148)),
        *(("swept", 6), ("swept", 148)),
    ]
    assert rows[-1]["note"] == "not measured: trackio is not installed"


def test_the_monitored_iteration_records_each_update(data_directory: Path) -> None:
    """The timed iteration records each update, and at most the first has a gradient sample."""
    iterate = peers_host_cost.given_iteration(6, monitored=True)

    for _ in range(3):
        iterate()

    updates = recording(data_directory).updates
    assert len(updates) == 3
    assert [update.gradients for update in updates[1:]] == [None, None]


def test_whole_steps_are_compared(tmp_path: Path) -> None:
    """Every kind of training takes turns and reports to a real server, on the CPU at a tiny size."""
    model, batch = partial(networks.gpt2, TINY, 50), partial(networks.tokens, TINY, 50)
    setting = whole_step.Setting("tiny", "cpu", model, batch, block=2, limit_s=0.0)

    rows = whole_step.in_turns(setting, tmp_path / "run")

    kinds = {row["kind"]: row for row in rows}
    assert same_columns(rows)
    assert kinds["fp16, ampmon"]["against"] == "fp16, stock"
    assert kinds["fp16, ampmon"]["bar"] == 1.01
    assert kinds["fp16, stock"]["against"] == "fp32"
    assert kinds["fp32"]["step_ms"] > 0


def test_the_resnet_trains() -> None:
    """A small ResNet with bottleneck blocks runs through the same comparison."""
    model, batch = partial(networks.ResNet, (1, 1), 4, 10), partial(networks.images, 2, 32, 10)
    kinds = ("fp16, stock", "fp16, ampmon")
    setting = whole_step.Setting("tiny", "cpu", model, batch, kinds, block=1, limit_s=0.0)

    rows = whole_step.compare(setting)

    assert [row["kind"] for row in rows] == list(kinds)
    assert rows[1]["ratio"] > 0


def test_the_demo_is_compared_without_fp32() -> None:
    """On the CPU the demo's model trains in fp16 only, with the stock scaler twice."""
    setting = replace(whole_step.demo(TINY), limit_s=0.0)

    assert setting.kinds == ("fp16, stock", "fp16, ampmon", "fp16, stock again")
    assert isinstance(setting.model()(*setting.batch()), torch.Tensor)


def test_the_networks_have_the_published_sizes() -> None:
    """GPT-2 small has 124 439 808 parameters in 148 tensors; ResNet-50 has 25 557 032 in 161."""
    with torch.device("meta"):
        gpt2, resnet = networks.gpt2(), networks.ResNet()

    for model, tensors, elements in ((gpt2, 148, 124_439_808), (resnet, 161, 25_557_032)):
        assert len(list(model.parameters())) == tensors
        assert sum(parameter.numel() for parameter in model.parameters()) == elements


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_gpu_rows_are_marked_where_there_is_no_gpu(tmp_path: Path) -> None:
    """Without a CUDA device no kernel row has a figure, and each says why."""
    rows = gpu_kernels.measure(tmp_path)

    assert same_columns(rows)
    assert {row["note"] for row in rows} == {"not measured: no CUDA device"}
    assert all(row["device_ms"] is row["ratio"] is None for row in rows)


def test_the_kernels_benchmark_runs_on_a_cpu() -> None:
    """The same comparisons run on a CPU with the host's clock, except those that need Triton."""
    rows = gpu_kernels.compare([torch.ones(100), torch.ones(3, 3)], gpu_kernels.on_host, rounds=2)

    named = by_what(rows)
    assert same_columns(rows)
    assert named["one read, half a copy"]["device_ms"] <= named["copy"]["device_ms"]
    assert named["statistics in plain torch"]["ratio"] > 0
    assert set(named) == {*gpu_kernels.ALONE, *gpu_kernels.AGAINST}


def test_the_kernels_benchmark_unscales_by_other_factors_than_1() -> None:
    """Gradients are halved and doubled in turn, so a kernel that writes nothing for a factor of 1 must write."""
    gradient, factors = torch.ones(5), []

    def watched(works: Sequence[Work]) -> list[gpu_kernels.Taken]:
        taken = []
        for work in works:
            before = gradient[0].item()
            taken += gpu_kernels.on_host([work])
            factors.append(gradient[0].item() / before)
        return taken

    gpu_kernels.compare([gradient], watched, rounds=3)
    written = [factor for factor in factors if factor != 1]
    # The warm-up already halved it once.
    assert written == [2.0, 0.5] * (len(written) // 2) != []


def test_a_report_says_what_it_hangs_on(tmp_path: Path) -> None:
    """The Markdown report names the command, the peers and how each table was measured; a JSON file is beside it."""
    figures = {
        "command": "make bench-probe",
        "machine": machine.describe(),
        "peers": {"wandb": "not installed"},
        "gpu_kernels": gpu_kernels.measure(tmp_path)
        if not torch.cuda.is_available()
        else [{"what": 1}],
    }

    text = report.as_markdown("Costs", BENCHMARKS, figures)
    report.write(tmp_path / "results" / "machine-probe", text, figures)

    assert "`make bench-probe`" in text
    assert "wandb not installed" in text
    assert (gpu_kernels.__doc__ or "-").strip() in text
    assert BENCHMARKS["whole_step"].title not in text
    assert {path.name for path in (tmp_path / "results").iterdir()} == {
        "machine-probe.json.gz",
        "machine-probe.md",
    }


def test_the_extra_installs_every_peer() -> None:
    """The extra `bench` names exactly the packages whose versions are reported."""
    extra = re.search(r"^bench = \[(.*)\]$", PYPROJECT.read_text(), re.MULTILINE)

    assert extra
    assert re.findall(r'"([\w-]+)', extra[1]) == list(peers.PEERS)


def test_peers_are_kept_quiet_only_while_they_are_measured(tmp_path: Path) -> None:
    """Inside the block wandb is offline and the home is a benchmark folder; afterwards the environment is restored."""
    before = dict(os.environ)

    with peers.quiet(tmp_path):
        within = os.environ["WANDB_MODE"], Path.home().parent

    assert within == ("offline", tmp_path)
    assert dict(os.environ) == before


def test_single_benchmarks_form_a_group() -> None:
    """Named groups are measured as they are, and single benchmarks form a group of their own."""
    assert list(chosen(["probe", "start_up"])) == ["probe", "singles"]
