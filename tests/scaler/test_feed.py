"""`ampmon.stream` records loss scaling that no torch GradScaler does, and disturbs nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import ampmon
from ampmon import wire
from ampmon.errors import ConfigurationError
from ampmon.integrations.patching import feed_from
from ampmon.integrations.trackers import Proposal, harmless, numbers
from ampmon.numerics.histogram import Statistics
from probe.test_no_sync import NoSync
from recording import recording, recordings


def test_updates_are_recorded_as_they_are_given(data_directory: Path) -> None:
    """Scale, skips and events are recorded, with the policy in the header and loss values beside them."""
    policy = ampmon.Policy(scaler="mine.Scaler", init_scale=8.0, growth_interval=2, hysteresis=2)
    feed = ampmon.stream("mine", policy=policy)
    updates = [(8.0, 8.0, True), (8.0, 4.0, True), (4.0, 4.0, False), (4.0, 8.0, False)]
    for before, after, skipped in updates:
        feed.update(before, after, skipped)
        ampmon.log({"loss": 0.5})
    assert (feed.updates, feed.skips, feed.errors) == (4, 2, 0)
    assert ampmon.metrics() == {"amp/scale": 8.0, "amp/skipped_total": 2, "amp/skip_rate": 0.5}
    recorded = recording(data_directory)
    seen = [(u.scale, u.scale_after, u.optimizers[0].skipped, u.event) for u in recorded.updates]
    events = ["steady", "backoff", "steady", "grow"]
    assert seen == [(*each, event) for each, event in zip(updates, events, strict=True)]
    assert [update.growth_tracker for update in recorded.updates] == [0, 0, 1, 0]
    assert [scalars.ordinal for scalars in recorded.scalars] == [0, 1, 2, 3]
    header = recorded.header("mine")
    assert header.scaler == "mine.Scaler(hysteresis=2, min_scale=0)"
    assert (header.init_scale, header.growth_interval) == (8.0, 2)


def test_tensors_of_one_element_are_accepted(data_directory: Path) -> None:
    """Scales and flags may be tensors of one element; an invalid value is counted, and the next update is kept."""
    feed = ampmon.stream()
    on_host = torch.tensor([4.0]), torch.tensor([2.0]), torch.tensor(True)
    feed.update(*on_host)
    with NoSync():
        feed.update(4.0, 4.0, False)
    with pytest.warns(ampmon.AmpmonWarning, match=r"ampmon\.stream failed"):
        feed.update("much", 1.0, False)  # type: ignore[arg-type]
    feed.update(2.0, 2.0, False)
    assert feed.errors == 1
    updates = recording(data_directory).updates
    assert [update.ordinal for update in updates] == [0, 1, 2]
    assert (updates[0].scale_after, updates[0].optimizers[0].skipped) == (2.0, True)


def test_gradients_are_looked_at_where_an_integration_says_so(data_directory: Path) -> None:
    """Samples are of the scaled gradients under the given names, and a skip has its culprits; errors are counted."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = {id(model.weight): "main.weight", id(model.bias): "main.bias"}
    feed = ampmon.stream("mine")
    feed.unscaling()
    feed.watch(optimizer, lambda: names, sharded=False)
    for skipped in (False, True):
        model(torch.full((1, 4), 8.0)).sum().backward()
        if skipped:
            model.weight.grad[0, 0] = float("inf")  # type: ignore[index]
        feed.unscaling()
        if skipped:
            feed.overflowed()
        optimizer.zero_grad()
        feed.update(8.0, 8.0, skipped)
    names.clear()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    optimizer.param_groups[0]["params"] = None
    with pytest.warns(ampmon.AmpmonWarning, match=r"ampmon\.stream failed"):
        feed.unscaling()
    feed.update(8.0, 8.0, False)
    recorded = recording(data_directory)
    assert [each.name for each in recorded.header("mine").parameters] == [
        "main.weight",
        "main.bias",
    ]
    first, second, third = recorded.updates
    assert first.gradients is not None
    assert Statistics.from_wire(first.gradients).sum_squares.tolist() == [8 * 64, 2]
    assert second.optimizers[0].culprits == (wire.Culprit(0, 1, 0),)
    assert (second.optimizers[0].optimizer, third.gradients) == ("SGD", None)
    assert (feed.errors, feed.metrics()["amp/zero_share"]) == (1, 0)


def test_a_method_is_called_as_the_framework_calls_it() -> None:
    """An integration passes on positional and keyword arguments alike, and records the flag in both."""

    class Scaler:
        scale = 4.0

        def update(self, found_inf: bool, *, by: float = 0.5) -> float:
            self.scale *= by if found_inf else 1.0
            return self.scale

    scaler = Scaler()
    feed = feed_from(scaler, "update", lambda: scaler.scale, "mine", ampmon.Policy())
    assert scaler.update(True) == 2.0
    assert scaler.update(found_inf=True, by=0.25) == 0.5
    assert scaler.update(found_inf=False) == 0.5
    assert (feed.updates, feed.skips, feed.errors) == (3, 2, 0)


def test_a_hook_of_a_framework_raises_nothing() -> None:
    """An error of ours in what a framework calls is a warning. What the hook returns, and a signal, pass."""

    @harmless
    def hook(values: dict[str, float], name: str) -> float:
        return values[name]

    assert hook({"lr": 0.5}, name="lr") == 0.5
    with pytest.warns(ampmon.AmpmonWarning, match="hook failed .KeyError: 'lr'"):
        assert hook({}, name="lr") is None
    with pytest.raises(KeyboardInterrupt):
        harmless(signal.default_int_handler)(signal.SIGINT, None)


def test_a_framework_s_next_training_with_the_same_scaler_is_a_whole_run(
    data_directory: Path,
) -> None:
    """The scaler of an earlier training begins the next one's run, as a new scaler does."""
    proposal, scaler = Proposal(), torch.amp.GradScaler("cpu", init_scale=2.0)
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for name in ("first", "second"):
        proposal.make(name)
        proposal.watch(scaler, None)
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        proposal.end()
    recorded = recordings(data_directory)
    assert [(each.attempt.name, len(each.updates)) for each in recorded] == [
        ("first", 1),
        ("second", 1),
    ]


def test_a_framework_leaves_the_scripts_own_run_alone(data_directory: Path) -> None:
    """A framework neither begins another run where `ampmon.init` has begun one, nor ends that."""
    ampmon.init(name="own")
    proposal = Proposal()
    proposal.make("framework's")
    proposal.end()
    ampmon.GradScaler("cpu")
    assert [each.attempt.name for each in recordings(data_directory)] == ["own"]


def test_values_of_numpy_are_numbers() -> None:
    """A framework's callback records the values that `ampmon.log` takes, and leaves out others."""
    values = {"a": np.float32(1), "b": np.int64(2), "c": True, "d": torch.ones(1), "e": 0.5}
    assert numbers({**values, "text": "x", "many": torch.ones(2), "rows": [1]}) == values


def test_a_stream_goes_on_in_the_next_run(data_directory: Path) -> None:
    """After `ampmon.init` a stream reports to the new run, from update 0 on; after `ampmon.finish` to none."""
    feed = ampmon.stream("mine")
    feed.update(4.0, 4.0, False)
    ampmon.init(name="another")
    feed.update(4.0, 4.0, False)
    ampmon.finish()
    feed.update(4.0, 4.0, False)
    first, second = recordings(data_directory)
    assert [update.ordinal for update in (*first.updates, *second.updates)] == [0, 0]


def test_a_disabled_stream_does_nothing(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under AMPMON_MODE=disabled a stream counts and records nothing."""
    monkeypatch.setenv("AMPMON_MODE", "disabled")
    feed = ampmon.stream()
    feed.update(4.0, 4.0, False)
    assert (feed.updates, feed.run_id, recordings(data_directory)) == (0, None, [])


@pytest.mark.parametrize("rule", [{"init_scale": float("inf")}, {"hysteresis": 0}])
def test_a_policy_that_cannot_be_is_refused(rule: dict[str, float]) -> None:
    """A policy with an impossible rule raises a ConfigurationError."""
    with pytest.raises(ConfigurationError, match=r"at least 1|not finite"):
        ampmon.Policy(**rule)  # type: ignore[arg-type]
