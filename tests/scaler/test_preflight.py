"""`ampmon.preflight` judges a model by real fp16 passes and changes nothing of it.

On the CPU, and on a GPU by `make gpu`.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ampmon
from ampmon.errors import ConfigurationError
from device.place import PLACE


class Energy(nn.Module):
    """RMS normalization through squares: beyond 255 they are infinite in fp16, and inf / inf is NaN."""

    def forward(self, inputs: Tensor) -> Tensor:
        energy = inputs * inputs + 1e-3
        return inputs.sign() * (energy / energy.mean(-1, keepdim=True)).sqrt()


class SilentNorm(nn.Module):
    """The same with a quotient that is 0, and so finite, if the squares are infinite."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs / (inputs * inputs).mean(-1, keepdim=True).sqrt()


class InFp32(nn.Module):
    """The fix that a preflight of `Energy` names."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Any:
        with torch.autocast(PLACE, enabled=False):
            return self.layer(inputs.float())


class Gain(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.gain


def mlp(*between: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 32), *between, nn.ReLU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)
    ).to(PLACE)


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(32, 16).to(PLACE), torch.randint(0, 4, (32,)).to(PLACE)


def loss_of(model: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(given[0]), given[1])


def times(factor: float) -> Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]:
    return lambda model, given: loss_of(model, given) * factor


def test_a_healthy_model_needs_no_change() -> None:
    """A perceptron gets the verdict to change nothing, with the error and the largest scale of each module."""
    found = ampmon.preflight(mlp(), batch(), loss_of)

    assert found.verdict.startswith("Nothing to change")
    assert (found.problem, found.fix, found.scale) == (False, "", 65536.0)
    assert {each.name for each in found.modules} == {"0", "2", "4"}
    for each in found.modules:
        assert 0 < (each.error or 0) < 0.01
        assert (each.bf16_error or 0) > 2 * (each.error or 0)
        assert (each.largest_scale or 0) > 65536
    assert str(found).startswith(found.verdict[:40])
    assert json.loads(json.dumps(found.to_dict()))["modules"][0]["kind"] == "Linear"


@pytest.mark.parametrize("norm", [Energy, SilentNorm])
def test_a_norm_that_overflows_is_named_and_cured_by_fp32(norm: type[nn.Module]) -> None:
    """A norm whose squares overflow is named to be kept in fp32, and with this fix the next preflight is clean."""
    sick = ampmon.preflight(mlp(Gain(1000.0), norm()), batch(), loss_of)
    cured = ampmon.preflight(mlp(Gain(1000.0), InFp32(norm())), batch(), loss_of)

    assert sick.problem
    assert [each.name for each in sick.modules if each.keep_fp32] == ["2"]
    assert f'torch.autocast("{PLACE}", enabled=False)' in sick.fix
    assert f"module 2 ({norm.__name__})" in sick.fix
    assert sick.fixed_error is not None
    assert sick.fixed_error < 0.01
    assert cured.verdict.startswith("Nothing to change")
    if norm is Energy:
        assert f"in the forward pass, first in module 2 ({norm.__name__})" in sick.verdict
        assert (sick.modules[0].name, sick.modules[0].overflows) == ("2", "forward")


def test_underflow_is_cured_by_the_scale_that_is_named() -> None:
    """Gradients that fp16 loses get a larger scale as the fix, and a preflight at that scale is clean."""
    sick = ampmon.preflight(mlp(), batch(), times(1e-9))
    scale = sick.scale or 0.0
    cured = ampmon.preflight(mlp(), batch(), times(1e-9), init_scale=scale)

    assert sick.problem
    assert "by more than 1 %" in sick.verdict
    assert scale > 65536
    assert sick.fix == f'scaler = ampmon.GradScaler("{PLACE}", init_scale=2.0**{np.log2(scale):g})'
    assert cured.verdict.startswith("Nothing to change")


def test_a_scale_that_falls_by_itself_is_no_problem() -> None:
    """Gradients that overflow at the first scale and fit at a smaller one are reported, but not as a problem."""
    found = ampmon.preflight(mlp(), batch(), times(256.0))

    assert (
        "in the backward pass at a loss scale of 2^16, first in module 4 (Linear)" in found.verdict
    )
    assert not found.problem
    assert 1 <= (found.scale or 0) < 65536
    assert found.error is None


def test_bf16_is_advised_where_no_scale_helps() -> None:
    """Gradients too large for fp16 at any scale get the advice to use bf16."""
    found = ampmon.preflight(mlp(), batch(), times(1e8))

    assert found.problem
    assert found.scale is None
    assert "torch.bfloat16" in found.fix


def test_what_fp32_cannot_do_is_not_blamed_on_fp16() -> None:
    """A loss or gradient that is NaN in fp32 too is blamed on data or model, with the place where it begins."""
    inputs, targets = batch()
    from_data = ampmon.preflight(mlp(), (inputs * float("nan"), targets), loss_of)
    from_model = ampmon.preflight(mlp(Gain(float("inf"))), batch(), loss_of)
    backward = ampmon.preflight(
        mlp(), batch(), lambda model, given: (0 * model(given[0]).sum()).sqrt()
    )

    for found in (from_data, from_model, backward):
        assert found.problem
        assert "not finite in fp32 either" in found.verdict
    assert "in the model's input" in from_data.verdict
    assert "first in module 1 (Gain)" in from_model.verdict
    assert "The gradient" in backward.verdict


class Everything(nn.Module):
    """BatchNorm, dropout, NumPy's and Python's draws, a counter, tied and frozen weights, a dict, a checkpoint."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.5)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.tied = nn.Linear(16, 16)
        self.tied.weight = self.first.weight
        self.calls, self.reentrant = 0, reentrant
        self.masks: list[Tensor] = []
        with torch.inference_mode():
            self.cached = torch.ones(16)

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        noise = float(np.random.random()) + random.random()
        hidden = checkpoint(self.first, inputs, use_reentrant=self.reentrant)
        dropped = self.drop(self.norm(hidden))
        self.masks.append(dropped == 0)
        return {"out": self.tied(self.frozen(dropped)) + noise}


def generators() -> list[Tensor]:
    """Return the states of torch's generators, on the host and on the GPU."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if PLACE == "cuda" else [])]


@dataclass
class Batch:
    inputs: Tensor
    targets: Tensor


@pytest.mark.parametrize("raises", [False, True])
def test_nothing_is_changed(raises: bool) -> None:
    """A preflight changes no weight, gradient, buffer, attribute, hook or random state, even if a pass raises."""
    model, criterion = Everything(reentrant=raises).to(PLACE), nn.Linear(16, 1).to(PLACE)
    given = Batch(
        torch.randn(8, 16, device=PLACE, requires_grad=True), torch.randn(8, 1, device=PLACE)
    )
    seen: list[Any] = []

    def loss_fn(model: nn.Module, given: Batch) -> Tensor:
        seen.append(given)
        loss = nn.functional.mse_loss(criterion(model(given.inputs)["out"]), given.targets)
        if raises and len(seen) == 2:
            raise ZeroDivisionError
        return loss

    loss_fn(model, given).backward()
    seen.clear()
    stepped: list[Tensor] = []
    model.first.weight.register_post_accumulate_grad_hook(stepped.append)
    handle = model.norm.register_forward_hook(lambda *_: None)
    leaves = [*model.parameters(), *criterion.parameters(), given.inputs]
    masks, gradients = len(model.masks), [each.grad for each in leaves]
    before = copy.deepcopy((model.state_dict(), gradients, model.calls, model.training))
    hooks = [dict(module._forward_hooks) for module in model.modules()]
    states = generators(), np.random.get_state(), random.getstate()

    if raises:
        with pytest.raises(ZeroDivisionError):
            ampmon.preflight(model, given, loss_fn)
    else:
        found = ampmon.preflight(model, given, loss_fn)
        assert {"first", "norm"} <= {each.name for each in found.modules}
        assert len(model.masks) - masks == len(seen) >= 3
        assert all(torch.equal(model.masks[-1], mask) for mask in model.masks[masks:])

    after = (model.state_dict(), [each.grad for each in leaves], model.calls, model.training)
    torch.testing.assert_close(after[:2], before[:2], rtol=0, atol=0)
    assert all(each.grad is old for each, old in zip(leaves, gradients, strict=True))
    assert after[2:] == before[2:]
    assert [dict(module._forward_hooks) for module in model.modules()] == hooks
    assert all(map(torch.equal, generators(), states[0]))
    assert np.random.get_state()[1].tolist() == states[1][1].tolist()
    assert random.getstate() == states[2]
    assert all(each is given for each in seen)
    assert stepped == []
    handle.remove()
    loss_fn(model, given).backward()
    assert stepped


def under_autocast(model: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
    with torch.autocast(PLACE, dtype=torch.bfloat16):
        return loss_of(model, given)


@pytest.mark.parametrize(
    ("model", "loss_fn", "words"),
    [
        (lambda: [mlp()], loss_of, "a torch.nn.Module is needed, not list"),
        (lambda: mlp().requires_grad_(False), loss_of, "no parameter requires a gradient"),
        (lambda: mlp().half(), loss_of, "0.weight is torch.float16, .* call model.float"),
        (lambda: torch.compile(mlp(), backend="eager"), loss_of, "is compiled"),
        (lambda: nn.DataParallel(mlp()), loss_of, "wrapped in DataParallel"),
        (lambda: nn.Sequential(nn.LazyLinear(4)), loss_of, "0.weight is not initialized"),
        (lambda: mlp().to("meta"), loss_of, "its weights are on meta"),
        (mlp, None, "loss_fn: a function"),
        (mlp, lambda model, given: model(given[0]), r"not shape \[32, 4\]"),
        (mlp, lambda model, given: loss_of(model, given).item(), "not float"),
        (mlp, lambda model, given: loss_of(model, given).detach(), "depends on no parameter"),
        (mlp, under_autocast, "runs under a torch.autocast of the model or of loss_fn"),
    ],
)
def test_what_cannot_be_checked_is_refused(
    model: Callable[[], Any], loss_fn: Any, words: str
) -> None:
    """A model or a loss that cannot be compared raises a ConfigurationError that says what to do."""
    with pytest.raises(ConfigurationError, match=words):
        ampmon.preflight(model(), batch(), loss_fn)


def test_a_scale_has_to_be_a_number_above_zero() -> None:
    """A first scale of 0 raises a ConfigurationError."""
    with pytest.raises(ConfigurationError, match="init_scale=0"):
        ampmon.preflight(mlp(), batch(), loss_of, init_scale=0)


class Checkpointed(nn.Module):
    """A part of a model whose forward pass runs again in the backward pass."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.part = nn.Sequential(*layers)

    def forward(self, inputs: Tensor) -> Any:
        return checkpoint(self.part, inputs, use_reentrant=True)


def test_a_module_in_a_checkpoint_is_named() -> None:
    """If a norm overflows in a part under reentrant checkpointing, the norm is named and not the part."""
    found = ampmon.preflight(mlp(Checkpointed(Gain(1000.0), Energy())), batch(), loss_of)

    assert "first in module 1.part.1 (Energy)" in found.verdict
    assert [each.name for each in found.modules if each.keep_fp32] == ["1.part.1"]


class Kink(nn.Module):
    """A ReLU whose inputs are first rounded to fp16's grid at 8, so that some of them become 0."""

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(inputs + 8 - 8)


def test_rounding_is_no_problem() -> None:
    """A ReLU that rounding turns off changes gradients by more than 1 %, which is not a problem."""
    found = ampmon.preflight(mlp(Kink()), batch(), loss_of)

    assert "by rounding alone" in found.verdict
    assert not found.problem
    assert max(each.error or 0 for each in found.modules) > 0.01


def test_dropout_is_no_error() -> None:
    """A transformer layer with dropout, in its attention too, is compared with equal dropout in both passes."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.5, batch_first=True)
    model = nn.Sequential(nn.Linear(16, 32), layer, nn.Linear(32, 4)).to(PLACE)
    inputs, targets = batch()

    found = ampmon.preflight(
        model,
        (inputs.view(4, 8, 16), targets),
        lambda model, given: nn.functional.cross_entropy(model(given[0]).flatten(0, 1), given[1]),
    )

    assert not found.problem
    assert max(each.error or 0 for each in found.modules) < 0.1


class Adapter(nn.Module):
    """A layer plus a share of another layer that is too small for fp16."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.adapter = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.base(inputs) + 1e-9 * self.adapter(inputs)
        return outputs


def test_one_layer_that_underflows_is_kept_in_fp32() -> None:
    """If only one layer's gradients are too small for fp16, the fix keeps that layer in fp32 and the scale stays."""
    found = ampmon.preflight(mlp(Adapter()), batch(), loss_of)

    assert [each.name for each in found.modules if each.keep_fp32] == ["1.adapter"]
    assert found.scale == 65536.0
    assert (found.modules[0].error or 0) > 0.01
