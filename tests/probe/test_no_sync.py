"""Device work is only enqueued and reads no value, so the training thread never waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampmon.probe import attribution, eager


aten = torch.ops.aten
READING = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.is_nonzero.default,
    aten.bincount.default,
    aten._unique2.default,
}
"""Operators whose result, or its shape, depends on values: on CUDA each waits for the device."""


class NoSync(TorchDispatchMode):
    """Raises for operators that would wait for a device if the tensors were on one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READING:
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


def gradients() -> list[torch.Tensor]:
    """Return gradients of all kinds: large, transposed, half, with inf and NaN."""
    odd = torch.tensor([float("inf"), float("nan"), 0.0])
    return [torch.randn(eager._BLOCK + 3), torch.randn(5, 7).t(), torch.randn(9).half(), odd]


@pytest.mark.parametrize("work", [eager.launch, attribution.flag])
def test_devices_are_not_waited_for(work: Callable[[list[torch.Tensor]], torch.Tensor]) -> None:
    """Statistics and flags are launched without an operator that reads a value."""
    made = gradients()
    with NoSync():
        work(made)


@pytest.mark.parametrize("work", [eager.launch, attribution.flag])
def test_the_work_does_not_depend_on_the_data(
    work: Callable[[list[torch.Tensor]], torch.Tensor],
) -> None:
    """Statistics and flags run on tensors without data and give the shape of their result."""
    result = work([torch.empty(300, 20, device="meta"), torch.empty(7, device="meta")])
    assert result.shape[0] == 2


def test_a_read_would_be_noticed() -> None:
    """`NoSync` refuses `.item()`, the truth value of a tensor and `nonzero`."""
    tensor = torch.ones(3)
    for read in (lambda: tensor.sum().item(), lambda: bool(tensor.sum() > 0), tensor.nonzero):
        with NoSync(), pytest.raises(AssertionError, match="waits"):
            read()
