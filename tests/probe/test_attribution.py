"""Gradients that are not finite are found by counting, and by flags that devices set without a wait."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ampmon
from ampmon.probe import attribution
from ampmon.probe.device import DeviceProbe
from ampmon.probe.hooks import BackwardOrderLearner
from ampmon.wire import Culprit
from probe.test_gradients import Operators
from recording import recording
from scaler.test_gradient_kinds import step, with_gradients


VALUES = st.lists(
    st.sampled_from([0.0, 1.0, -3.5, math.inf, -math.inf, math.nan]), min_size=1, max_size=6
)


@given(st.lists(VALUES, min_size=1, max_size=5))
def test_counts_are_those_of_the_elements(values: list[list[float]]) -> None:
    """Every gradient with an inf or a NaN is named with the number of each, and no other gradient is."""
    gradients = [torch.tensor(row) for row in values]
    expected = [
        Culprit(index, sum(map(math.isinf, row)), sum(map(math.isnan, row)))
        for index, row in enumerate(values)
        if not all(map(math.isfinite, row))
    ]
    assert attribution.count(gradients, range(len(gradients))) == expected


@given(st.lists(VALUES, min_size=1, max_size=5))
def test_flags_name_the_same_gradients(values: list[list[float]]) -> None:
    """The flags name exactly the gradients that counting names, and never call an inf a NaN."""
    gradients = [torch.tensor(row) for row in values]
    counted = attribution.count(gradients, range(len(gradients)))
    flagged = attribution.from_flags(attribution.flag(gradients), range(len(gradients)))
    assert [culprit.parameter for culprit in flagged] == [culprit.parameter for culprit in counted]
    for flag, count in zip(flagged, counted, strict=True):
        assert (flag.nan == 0) == (count.nan == 0)


def test_gradients_are_not_read_for_culprits_that_nobody_needs(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without kernels, gradients are read for culprits only in a sampled update or after a known overflow."""
    monkeypatch.setattr(DeviceProbe, "takes", lambda *_: True)
    parameters = with_gradients(torch.ones(5), torch.ones(3))
    optimizer = torch.optim.SGD(parameters, lr=0.0)
    scaler = ampmon.GradScaler("cpu", init_scale=8.0, monitor=ampmon.Config(every=100))
    step(scaler, optimizer)
    with Operators() as operators:
        step(scaler, optimizer)
    assert not [name for name in operators.ran if "norm" in name]

    parameters[1].grad[2] = math.nan
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)
    monitor = scaler.monitor
    found = scaler._found_inf_per_device(optimizer)
    monitor._measurer.search(optimizer, monitor._iteration, found)
    scaler.step(optimizer)
    scaler.update()
    (taken,) = recording(data_directory).updates[2].optimizers
    assert [culprit.parameter for culprit in taken.culprits] == [1]


def test_an_order_may_be_learned_anew_while_it_is_asked_for() -> None:
    """Sorting culprits uses one consistent order, even if the training thread starts to learn a new one meanwhile."""
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    learner = BackwardOrderLearner(lambda: enumerate(parameters))
    learner.watch()
    for _ in range(2):
        (parameters[0] * 2 + parameters[1] * 3).backward()
        learner.updated()

    class Interrupted(list[int]):
        def __iter__(self) -> Iterator[int]:
            learner.watch()
            return super().__iter__()

    order, how = learner.sort([0, 1])
    assert how == "learned"
    assert learner.sort(Interrupted([0, 1])) == (order, "learned")
    assert learner.sort([0, 1]) == ([1, 0], "assumed")
