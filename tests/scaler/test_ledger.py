"""The ledger of skips is right on every route, and every record says what happened."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

import ampmon
from ampmon.client.description import RULES_EVERY
from ampmon.client.gear import LOOK_EVERY
from ampmon.lints.passes import MOST
from ampmon.spool import frame
from older_torch import named
from recording import recording


OVERFLOW = float("inf")


def gan() -> tuple[torch.nn.Module, torch.nn.Module, Optimizer, Optimizer]:
    """Return two models and an optimizer for each."""
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    return first, second, SGD(first.parameters(), lr=0.1), SGD(second.parameters(), lr=0.1)


def iterate(
    scaler: torch.amp.GradScaler,
    model: torch.nn.Module,
    *optimizers: Optimizer,
    spoil: float | None = None,
    unscale: bool = False,
) -> None:
    """Run one iteration: forward, backward, perhaps spoil a gradient, step each optimizer, update."""
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    if spoil is not None:
        next(model.parameters()).grad.view(-1)[0] = spoil
    for optimizer in optimizers:
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
    scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()


def test_only_the_optimizer_that_overflowed_is_in_the_ledger(data_directory: Path) -> None:
    """T1: `update()` adds the second optimizer's found_inf to the first's, but the ledger names only the second."""
    first, second, one, two = gan()
    scaler = ampmon.GradScaler("cpu", init_scale=4.0)
    scaler.scale(first(torch.ones(2, 4)).sum() + second(torch.ones(2, 4)).sum()).backward()
    second.weight.grad[0, 0] = OVERFLOW
    scaler.step(one)
    scaler.step(two)
    held = next(iter(scaler._found_inf_per_device(one).values()))
    scaler.update()
    assert held.item() == 1.0
    update = recording(data_directory).updates[0]
    assert [(step.optimizer, step.skipped) for step in update.optimizers] == [
        ("SGD", False),
        ("SGD-2", True),
    ]
    assert update.event == "backoff"


FUSED: list[Callable[[Any], Optimizer]] = [
    lambda parameters: SGD(parameters, lr=0.1, fused=True),
    lambda parameters: Adam(parameters, lr=0.1, fused=True),
    lambda parameters: AdamW(parameters, lr=0.1, fused=True),
    lambda parameters: torch.optim.Adagrad(parameters, lr=0.1, fused=True),
]


@pytest.mark.parametrize("make", FUSED)
def test_a_fused_skip_is_recorded_though_the_optimizer_ran(
    data_directory: Path, make: Callable[[Any], Optimizer]
) -> None:
    """T2: a fused optimizer's `step` and post-hooks run on an overflow, yet the ledger has the skip."""
    model = torch.nn.Linear(4, 4, bias=False)
    optimizer = make(model.parameters())
    fired: list[int] = []
    optimizer.register_step_post_hook(lambda *_: fired.append(1))
    scaler = ampmon.GradScaler("cpu", init_scale=1024.0)
    iterate(scaler, model, optimizer)
    before = model.weight.detach().clone()
    iterate(scaler, model, optimizer, spoil=OVERFLOW)
    assert len(fired) == 2
    assert torch.equal(model.weight, before)
    steps = [update.optimizers[0] for update in recording(data_directory).updates]
    assert [(step.path, step.skipped) for step in steps] == [("fused", False), ("fused", True)]


@pytest.mark.parametrize(
    ("fused", "unscale", "path"),
    [(False, False, "plain"), (True, False, "fused"), (True, True, "unscaled")],
)
def test_the_scale_is_the_scalers_own_on_every_route(
    data_directory: Path, fused: bool, unscale: bool, path: str
) -> None:
    """T3, T4: the recorded scale is `_scale`, whatever inverse torch passes, with one set of statistics per update."""
    model = torch.nn.Linear(4, 4)
    optimizer = AdamW(named(model.named_parameters()), fused=fused)
    scaler = ampmon.GradScaler("cpu", init_scale=8.0, monitor=ampmon.Config(every=1))
    for _ in range(3):
        iterate(scaler, model, optimizer, unscale=unscale)
    recorded = recording(data_directory)
    assert [(update.scale, update.optimizers[0].path) for update in recorded.updates] == [
        (8.0, path)
    ] * 3
    for ordinal in range(3):
        statistics = recorded.statistics(ordinal)
        # The gradient of the sum over a batch of two ones is 2 everywhere, seen here before unscaling.
        assert statistics.amax.tolist() == [16.0, 16.0]
        assert statistics.parameters.tolist() == [0, 1]


def test_the_boundary_is_update_not_step(data_directory: Path) -> None:
    """T6: two optimizers and four accumulated backward passes make one record per `update()`."""
    first, second, one, two = gan()
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    for _ in range(3):
        for _ in range(4):
            scaler.scale(
                (first(torch.ones(1, 4)).sum() + second(torch.ones(1, 4)).sum()) / 4
            ).backward()
        scaler.step(one)
        scaler.step(two)
        scaler.update()
    updates = recording(data_directory).updates
    assert [update.ordinal for update in updates] == [0, 1, 2]
    assert all(len(update.optimizers) == 2 for update in updates)


def test_a_hand_on_the_scale_between_iterations_is_an_event(data_directory: Path) -> None:
    """T7: `update(new_scale)` without a step counts no step, and is recorded as `manual_set` with both scales."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=4.0)
    iterate(scaler, model, optimizer)
    scaler.update(64.0)
    iterate(scaler, model, optimizer)
    recorded = recording(data_directory)
    assert [(update.ordinal, update.scale) for update in recorded.updates] == [(0, 4.0), (1, 64.0)]
    (event,) = recorded.events("manual_set")
    assert (event.ordinal, event.detail) == (1, {"scale": 4.0, "scale_after": 64.0})


def test_a_scale_moved_without_a_step_is_known_and_sampled(data_directory: Path) -> None:
    """After an `update()` without a step, `metrics()` has the new scale, and the next update is sampled."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    config = ampmon.Config(every=100)
    scaler = ampmon.GradScaler("cpu", init_scale=4.0, model=model, monitor=config)
    for _ in range(2):
        iterate(scaler, model, optimizer)
    scaler.update(64.0)
    assert scaler.monitor is not None
    assert scaler.monitor.metrics()["amp/scale"] == 64.0
    iterate(scaler, model, optimizer)
    sampled = [update.gradients is not None for update in recording(data_directory).updates]
    assert sampled == [True, False, True]


def test_a_static_scale_hides_no_skip(data_directory: Path) -> None:
    """T7, F2: with `update(16.0)` after a NaN step the scale stays, and the ledger has the skip."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=16.0)
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    model.weight.grad[0, 0] = math.nan
    scaler.step(optimizer)
    scaler.update(16.0)
    (update,) = recording(data_directory).updates
    assert (update.event, update.scale, update.scale_after) == ("manual_set", 16.0, 16.0)
    assert update.optimizers[0].skipped
    assert update.optimizers[0].culprits[0].nan == 1


def test_why_the_scale_moved(data_directory: Path) -> None:
    """Growth, back-off, the cap and a steady scale are different events."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.0)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0**126, growth_interval=2)
    for spoil in (None, None, None, None, OVERFLOW):
        scaler.scale(model(torch.ones(2, 4)).sum() * 0).backward()
        if spoil is not None:
            model.weight.grad[0, 0] = spoil
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    updates = recording(data_directory).updates
    assert [update.event for update in updates] == [
        "steady",
        "grow",
        "steady",
        "grow_capped",
        "backoff",
    ]
    assert [update.growth_tracker for update in updates] == [1, 0, 1, 0, 0]


def test_a_dead_scale_is_distinguished_from_any_other(data_directory: Path) -> None:
    """F4: from 65536 the 144th skip in a row ends at 2^-128 and is `dead`, like all later updates, even at scale 0."""
    model = torch.nn.Linear(4, 4, bias=False)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu")
    for _ in range(167):
        iterate(scaler, model, optimizer, spoil=math.nan)
    updates = recording(data_directory).updates
    events = [update.event for update in updates]
    assert events == ["backoff"] * 143 + ["dead"] * 24
    assert updates[143].scale_after == 2.0**-128
    assert updates[165].scale_after == 0.0
    assert all(update.optimizers[0].skipped for update in updates)


def test_a_skip_at_scale_zero_blames_the_gradient_that_was_nan(data_directory: Path) -> None:
    """At scale 0 unscaling makes every zero NaN; the ledger names only what was not finite before."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = SGD(named(model.named_parameters()), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    iterate(scaler, model, optimizer)
    scaler.update(0.0)
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    model[1].bias.grad[0] = math.nan
    scaler.step(optimizer)
    scaler.update()
    recorded = recording(data_directory)
    step = recorded.updates[1].optimizers[0]
    assert step.skipped
    assert recorded.names(step) == ["1.bias"]
    assert (step.culprits[0].inf, step.culprits[0].nan) == (0, 1)


@pytest.mark.parametrize("where", ["step", "update"])
def test_torchs_own_errors_pass_unchanged(data_directory: Path, where: str) -> None:
    """T8: without gradients `step()` and `update()` raise the stock scaler's errors, each recorded as an event."""

    def provoke(scaler: torch.amp.GradScaler) -> str:
        model = torch.nn.Linear(4, 4)
        optimizer = SGD(model.parameters(), lr=0.1)
        scaler.scale(torch.ones(()))
        with pytest.raises(AssertionError) as raised:
            scaler.step(optimizer)
        if where == "update":
            with pytest.raises(AssertionError) as raised:
                scaler.update()
        return str(raised.value)

    assert provoke(ampmon.GradScaler("cpu")) == provoke(torch.amp.GradScaler("cpu"))
    recorded = recording(data_directory)
    expected = ["step", "update"] if where == "update" else ["step"]
    assert [event.detail["where"] for event in recorded.events("step_raised")] == expected
    assert recorded.events("error") == []


def test_an_unscaling_refused_later_is_kept_too(data_directory: Path) -> None:
    """An `unscale_()` that raises after the first iteration is an event, and no monitor error."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    iterate(scaler, model, optimizer)
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    model.half()
    with pytest.raises(ValueError, match=r"Attempting to unscale FP16 gradients\."):
        scaler.unscale_(optimizer)
    recorded = recording(data_directory)
    assert [event.detail["where"] for event in recorded.events("step_raised")] == ["unscale_"]
    assert recorded.events("error") == []


def test_an_optimizer_made_anew_is_another(data_directory: Path) -> None:
    """T9: an optimizer that replaces a deleted one, perhaps at its address, has another name in the ledger."""
    model = torch.nn.Linear(4, 4)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    names = []
    for _ in range(3):
        optimizer = SGD(model.parameters(), lr=0.1)
        iterate(scaler, model, optimizer)
        del optimizer
    names = [update.optimizers[0].optimizer for update in recording(data_directory).updates]
    assert names == ["SGD", "SGD-2", "SGD-3"]


def test_fp16_gradients_are_refused_as_ever_and_named(data_directory: Path) -> None:
    """T14: fp16 parameters raise torch's own error, and the event names the parameters."""
    model = torch.nn.Linear(4, 4).half()
    optimizer = SGD(named(model.named_parameters()), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    scaler.scale(torch.ones((), requires_grad=True)).backward()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(ValueError, match=r"Attempting to unscale FP16 gradients\."):
        scaler.step(optimizer)
    (event,) = recording(data_directory).events("step_raised")
    assert event.detail["fp16_parameters"] == ["weight", "bias"]


def test_statistics_and_culprits_are_taken_before_clipping(data_directory: Path) -> None:
    """T18: the largest gradient does not depend on the clipping threshold, and one inf blames one parameter."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = SGD(named(model.named_parameters()), lr=0.0)
    scaler = ampmon.GradScaler("cpu", init_scale=4.0, monitor=ampmon.Config(every=1), model=model)
    for threshold, spoil in ((1e-3, None), (1e3, None), (1.0, OVERFLOW)):
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        if spoil is not None:
            model[0].weight.grad[1, 1] = spoil
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), threshold)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    recorded = recording(data_directory)
    small, large = recorded.statistics(0), recorded.statistics(1)
    assert small.amax.tolist() == large.amax.tolist()
    step = recorded.updates[2].optimizers[0]
    assert recorded.names(step) == ["0.weight"]
    assert step.culprit_parameters == 1


def test_the_first_to_overflow_comes_first(data_directory: Path) -> None:
    """Culprits are in backward order, which is learned on two updates and labelled assumed before."""
    model = torch.nn.ModuleDict({"early": torch.nn.Linear(4, 4), "late": torch.nn.Linear(4, 4)})
    optimizer = SGD(named(model.named_parameters()), lr=0.0)
    scaler = ampmon.GradScaler("cpu", init_scale=4.0)
    for spoil in (True, False, False, True, *[False] * MOST):
        # Forward through late before early: backward reaches early first, against the order of the parameters.
        scaler.scale(model["early"](model["late"](torch.ones(2, 4))).sum()).backward()
        if spoil:
            for parameter in model.parameters():
                parameter.grad.fill_(OVERFLOW)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    recorded = recording(data_directory)
    before, after = recorded.updates[0].optimizers[0], recorded.updates[3].optimizers[0]
    assert before.culprit_order == "assumed"
    assert recorded.names(before)[0] == "late.bias"
    assert after.culprit_order == "learned"
    assert recorded.names(after)[0].startswith("early.")
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def test_two_scalers_are_two_streams(data_directory: Path) -> None:
    """T21: each scaler of a process has its own stream, counted from its own first update."""
    first, second, one, two = gan()
    generator = ampmon.GradScaler("cpu", init_scale=2.0, name="generator")
    other = ampmon.GradScaler("cpu", init_scale=1024.0)
    for _ in range(2):
        iterate(generator, first, one)
    iterate(other, second, two, spoil=OVERFLOW)
    recorded = recording(data_directory)
    assert [(update.ordinal, update.scale) for update in recorded.of("generator")] == [
        (0, 2.0),
        (1, 2.0),
    ]
    assert [(update.ordinal, update.scale) for update in recorded.of("scaler")] == [(0, 1024.0)]


def test_loading_its_state_is_an_event_and_not_loading_it_is_none(data_directory: Path) -> None:
    """T23: a scaler that loads its state records an event; one that does not starts at init_scale without it."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    first = ampmon.GradScaler("cpu", init_scale=256.0)
    iterate(first, model, optimizer, spoil=OVERFLOW)
    resumed = ampmon.GradScaler("cpu", init_scale=256.0, name="resumed")
    resumed.load_state_dict(first.state_dict())
    forgotten = ampmon.GradScaler("cpu", init_scale=256.0, name="forgotten")
    for scaler in (resumed, forgotten):
        iterate(scaler, model, optimizer)
    recorded = recording(data_directory)
    (event,) = recorded.events("state_loaded")
    assert (event.stream, event.detail["scale"]) == ("resumed", 128.0)
    assert recorded.of("resumed")[0].scale == 128.0
    assert recorded.of("forgotten")[0].scale == recorded.header("forgotten").init_scale


def test_what_else_a_state_holds_is_no_matter(data_directory: Path) -> None:
    """A state with a user's own key loads as in the stock scaler; a scale in a tensor is not read."""
    state = ampmon.GradScaler("cpu").state_dict() | {"version": "mine", "scale": torch.tensor(8.0)}
    scaler = ampmon.GradScaler("cpu")
    scaler.load_state_dict(state)
    recorded = recording(data_directory)
    (event,) = recorded.events("state_loaded")
    assert event.detail == {
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000.0,
        "_growth_tracker": 0.0,
    }
    assert recorded.events("error") == []


def test_rules_that_are_set_anew_are_reported(data_directory: Path) -> None:
    """Rules that setters or a loaded state change during training are in the header soon after."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=4.0, growth_interval=5)
    scaler.set_growth_factor(4.0)
    for update in range(2 * RULES_EVERY):
        if update == 10:
            scaler.set_growth_interval(1000)
            scaler.set_backoff_factor(0.25)
        if update == RULES_EVERY + 1:
            scaler.load_state_dict({**scaler.state_dict(), "growth_factor": 8.0, "scale": 64.0})
        iterate(scaler, model, optimizer)
    recorded = recording(data_directory)
    header = recorded.header()
    assert (header.growth_interval, header.backoff_factor) == (1000, 0.25)
    assert (header.growth_factor, header.init_scale) == (8.0, 4.0)
    assert recorded.events("error") == []


def test_rules_that_change_at_each_update_fill_no_spool(data_directory: Path) -> None:
    """Rules that change before every update are written now and then, and the header is never far behind."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=4.0)
    for update in range(4 * RULES_EVERY):
        scaler.set_growth_interval(3000 + update)
        iterate(scaler, model, optimizer)
    recorded = recording(data_directory)
    (segment,) = data_directory.rglob("*.seg")
    salt = frame.salt_of(recorded.attempt.attempt_id, 0)
    frames = frame.scan(segment.read_bytes(), salt=salt, offset=0, complete=True)
    headers = [each for each in frames if isinstance(each, frame.Frame) and each.key]
    assert len(headers) <= 3 + 4
    behind = 3000 + 4 * RULES_EVERY - 1 - recorded.header().growth_interval
    assert 0 <= behind < RULES_EVERY + LOOK_EVERY


def test_an_infinite_maximum_survives(data_directory: Path) -> None:
    """T25: infinite and NaN maxima are recorded unchanged, with their counts."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(named(model.named_parameters()), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=4.0, monitor=ampmon.Config(every=1))
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    model.weight.grad[0, :2] = OVERFLOW
    model.bias.grad[0] = math.nan
    scaler.step(optimizer)
    scaler.update()
    statistics = recording(data_directory).statistics(0)
    assert statistics.amax[0] == OVERFLOW
    assert math.isnan(statistics.amax[1])
    assert (statistics.inf.tolist(), statistics.nan.tolist()) == ([2, 0], [0, 1])


def test_seq_has_no_holes(data_directory: Path) -> None:
    """Each stream's records are numbered from 0 without a gap."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=4.0)
    for _ in range(5):
        iterate(scaler, model, optimizer)
        ampmon.log({"loss": 1.0})
    recorded = recording(data_directory)
    for stream in ("", "scaler"):
        seqs = [
            record.seq
            for record in recorded.messages
            if getattr(record, "seq", None) is not None and record.stream == stream
        ]
        assert seqs == list(range(len(seqs)))
        assert seqs
    assert pickle.loads(pickle.dumps(scaler)).get_scale() == 4.0


def test_optimizers_that_take_turns_are_both_sampled(data_directory: Path) -> None:
    """If two optimizers take turns, every second update of each is sampled."""
    first, second, one, two = gan()
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, monitor=ampmon.Config(every=2))
    for _ in range(8):
        iterate(scaler, first, one)
        iterate(scaler, second, two)
    sampled = [update.gradients is not None for update in recording(data_directory).updates]
    assert sampled == [True, True, False, False] * 4


def test_a_step_refused_the_second_time_was_still_taken(data_directory: Path) -> None:
    """A second `step()` raises as in torch, and the update keeps the step that was taken."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(optimizer)
    scaler.update()
    recorded = recording(data_directory)
    assert [step.optimizer for step in recorded.updates[0].optimizers] == ["SGD"]
    assert len(recorded.events("step_raised")) == 1


def test_the_first_update_says_whether_the_scaler_began_anew(data_directory: Path) -> None:
    """`fresh` marks the first update of a new scaler, and not of one that was loaded, unpickled or watched."""
    scalers = [ampmon.GradScaler("cpu", init_scale=4.0) for _ in range(3)]
    scalers[1].load_state_dict(scalers[0].state_dict() | {"scale": 8.0})
    scalers[2] = pickle.loads(pickle.dumps(scalers[2]))
    scalers.append(ampmon.watch(torch.amp.GradScaler("cpu", init_scale=4.0)))
    first, _, one, _ = gan()
    for scaler in scalers:
        iterate(scaler, first, one)
        iterate(scaler, first, one)
    fresh = [(update.ordinal, update.fresh) for update in recording(data_directory).updates]

    assert fresh == [(0, True), (1, False), *[(0, False), (1, False)] * 3]
