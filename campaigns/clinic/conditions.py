"""The faults and severities of random patients, and the kinds of healthy ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from campaigns.clinic import healthy, parallel, sick_code, sick_numbers, sick_runs
from campaigns.clinic.adversarial import Adversarial, SickCritic, SickGenerator
from campaigns.clinic.patient import Ends, Spoil
from campaigns.clinic.training import Training


Draw = Callable[[Random], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Condition:
    """The fields of a random `Patient`. ``draw`` returns the fields of its plan to override, such as the strength."""

    rules: tuple[str, ...] = ()
    attempts: tuple[type[Training], ...] = (Training,)
    draw: Draw = lambda _: {}
    layer: str | None = None
    ranks: int = 1
    ends: Ends = "finished"
    spoil: Spoil | None = None
    incurable: bool = False


def _power(chance: Random, low: float, high: float) -> float:
    """10 to a random power between ``low`` and ``high``."""
    return float(10 ** chance.uniform(low, high))


def _two(chance: Random, low: int, high: int) -> float:
    return 2.0 ** chance.randint(low, high)


def _rate(chance: Random) -> dict[str, Any]:
    """A learning rate for a `Pair`, which has its own model and optimizers."""
    return {"lr": _power(chance, -3, -2.5), "accumulate": 1, "clip": None}


def _adam(chance: Random) -> dict[str, Any]:
    """Optimizers with which a large gradient makes no large step, which would destroy the model."""
    return {"optimizer": chance.choice(("adam", "adamw", "fused adam"))}


def _short(chance: Random) -> dict[str, Any]:
    """For trainings with two attempts or two ranks."""
    return {"updates": chance.randint(60, 110), "accumulate": chance.choice((1, 1, 2))}


def _passes(chance: Random) -> dict[str, Any]:
    """Many backward passes per update."""
    return {"accumulate": chance.randint(4, 16), "batch": 8, "updates": chance.randint(80, 120)}


def _set_low(chance: Random) -> dict[str, Any]:
    """A loss so small that the scale set by hand is too low."""
    return {
        "model": chance.choice(("mlp", "mlp tanh", "mlp gelu")),
        "init_scale": 4.0,
        "strength": _two(chance, 0, 4),
        "loss": _power(chance, -3, -2),
    }


HEALTHY: Sequence[Condition] = (
    Condition(),
    Condition(),
    Condition(draw=_passes),
    Condition(draw=lambda _: {"dtype": "bfloat16", "enabled": False, "clip": None}),
    Condition(attempts=(healthy.ClippedByValue,)),
    Condition(attempts=(healthy.Evaluating,)),
    Condition(attempts=(healthy.InFp8,)),
    Condition(attempts=(sick_code.Scheduled,)),
    Condition(attempts=(Adversarial,), draw=_rate),
    Condition(attempts=(sick_runs.Saving, sick_runs.Resumed), draw=_short),
    Condition(attempts=(parallel.Parallel,), draw=_short, ranks=2),
    Condition(attempts=(parallel.Distributed,), draw=_short, ranks=2),
    Condition(attempts=(healthy.NormInFp32,)),  # in fp16 it overflows backward in usual batches too
    Condition(attempts=(sick_numbers.ForwardSoftmax,)),
    Condition(attempts=(sick_numbers.ForwardAttention,)),
)
"""Includes layers that are faulty only at a ``strength`` other than 1."""

_LOUD = {"clip": None, "accumulate": 1, "updates": 160}
"""No clipping or accumulation, which could hide the fault."""

SICK: Sequence[Condition] = (
    Condition(
        ("forward_overflow",),
        (Training,),
        lambda c: {
            "model": "mlp",
            "optimizer": "sgd",
            "lr": _power(c, 2.7, 3.5),
            "activations": 1,
            "clip": None,
            "updates": 100,
        },
        incurable=True,
    ),
    Condition(
        ("backward_overflow",),
        (sick_numbers.BackwardGain,),
        lambda c: {**_LOUD, "strength": _power(c, 12, 30), "activations": 1, "updates": 100},
        layer="mine",
        incurable=True,
    ),
    Condition(
        ("forward_overflow",),
        (sick_numbers.ForwardPower,),
        lambda c: {
            **_LOUD,
            "strength": _power(c, 1.8, 3),
            "activations": 1,
            "updates": 100,
            "init_scale": 2.0
            ** 8,  # at a larger scale, such batches also overflow backward, in another layer
        },
        layer="power",
    ),
    Condition(
        ("forward_overflow",),
        (sick_numbers.ForwardNorm,),
        lambda c: {**_LOUD, "strength": _power(c, 3.4, 4)},
        layer="norm",
    ),
    Condition(
        ("forward_overflow",),
        (sick_numbers.ForwardSoftmax,),
        lambda c: {**_LOUD, "strength": c.uniform(8, 15)},
        layer="softmax",
    ),
    Condition(
        ("forward_overflow",),
        (sick_numbers.ForwardAttention,),
        lambda c: {**_LOUD, "strength": _power(c, 3, 3.5)},
        layer="attention",
    ),
    Condition(
        ("forward_overflow",),
        (SickCritic,),
        lambda c: {**_LOUD, **_rate(c), "strength": _power(c, 3.4, 4)},
        layer="critic.middle",
    ),
    Condition(
        ("forward_overflow",),
        (parallel.NormOnRanks,),
        lambda c: {**_LOUD, **_short(c), "strength": _power(c, 3.4, 4)},
        layer="norm",
        ranks=2,
    ),
    Condition(
        ("backward_overflow",),
        (SickGenerator,),
        lambda c: {**_LOUD, **_rate(c), "strength": _power(c, 12, 30), "activations": 1},
        layer="generator.middle",
        incurable=True,
    ),
    Condition(
        ("backward_overflow",),
        (sick_numbers.Tempered,),
        lambda c: {**_LOUD, "strength": _power(c, 12, 15), "activations": 1},
        layer="mine",
    ),
    Condition(
        ("culprit_layer",),
        (sick_numbers.WideFeature,),
        lambda c: {
            **_LOUD,
            **_adam(c),
            "strength": _power(c, 3.7, 4.3),
            "updates": 400,
        },
        layer="head.weight",
    ),
    Condition(
        ("nan_not_overflow",),
        (sick_numbers.NaNData,),
        lambda c: {"model": "mlp", "strength": c.choice((5, 10, 20, 40, 10**6))},
        incurable=True,
    ),
    Condition(
        ("nan_not_overflow",),
        (sick_numbers.NaNForever,),
        lambda _: {"model": "mlp tanh"},
        incurable=True,
    ),
    Condition(
        ("nan_not_overflow",),
        (parallel.NaNOnOneRank,),
        lambda c: {**_short(c), "model": "mlp", "strength": c.choice((5, 10, 20))},
        ranks=2,
        incurable=True,
    ),
    Condition(
        ("nan_not_overflow",),
        (sick_runs.Saving, sick_runs.ResumedOnNaN),
        lambda c: {**_short(c), "model": "mlp", "strength": c.choice((5, 10, 20))},
        incurable=True,
    ),
    Condition(
        ("slow_growth",),
        (Training,),
        lambda c: {
            "model": c.choice(("mlp", "mlp tanh", "mlp gelu")),
            "init_scale": _two(c, -4, 1),
            "growth_interval": c.choice((1000, 2000, 10**9)),
            "loss": _power(c, -3, -2),
            "every": 10,
        },
    ),
    Condition(
        ("subnormal", "flushed"),
        (sick_numbers.ManualScale,),
        lambda c: {**_set_low(c), "every": 10},
    ),
    Condition(
        ("subnormal", "flushed"),
        (sick_numbers.ManualScale,),
        lambda c: {**_passes(c), **_set_low(c)},
    ),
    Condition(
        ("subnormal", "subnormal_parameter"),
        (sick_numbers.EndlessGain,),
        lambda c: {
            **_LOUD,
            **_adam(c),
            "strength": _power(c, 9.5, 10.5),
            "loss": 1e-6,
            "init_scale": 2.0**16,
            "updates": 300,
        },
    ),
    Condition(
        ("scale_floor",),
        (sick_numbers.ManualScale,),
        lambda c: {"strength": _two(c, 28, 36), "init_scale": 2.0**28},
    ),
    Condition(
        ("sawtooth",),
        (Training,),
        lambda c: {**_LOUD, "growth_interval": c.randint(2, 6), "init_scale": 2.0**16},
    ),
    Condition(
        ("sawtooth",),
        (parallel.Distributed,),
        lambda c: {
            **_LOUD,
            **_short(c),
            "growth_interval": c.randint(2, 6),
            "init_scale": 2.0**16,
        },
        ranks=2,
    ),
    Condition(
        ("low_scale",),
        (Training,),
        lambda c: {"loss": _power(c, 8, 11), "updates": 240, "model": "mlp", "clip": 1.0},
    ),
    Condition(
        ("skip_rate",),
        (sick_numbers.Spikes,),
        lambda c: {
            **_LOUD,
            "model": "mlp",
            "strength": c.randint(15, 40),
            "growth_interval": 10,
            "updates": 400,
        },
    ),
    Condition(
        ("skip_rate",),
        (sick_numbers.Outliers,),
        lambda c: {
            **_LOUD,
            "model": c.choice(("mlp tanh", "mlp", "mlp gelu")),
            "strength": _two(c, 11, 15),
            "growth_interval": 10**9,
            "updates": 500,
        },
    ),
    Condition(
        ("consecutive_skips",),
        (sick_numbers.Burst,),
        lambda c: {**_LOUD, "model": "mlp", "strength": c.randint(10, 20), "activations": None},
    ),
    Condition(
        ("diverged",),
        (sick_code.RateRaised,),
        lambda c: {
            **_LOUD,
            "model": c.choice(("mlp", "mlp tanh", "cnn")),
            "optimizer": c.choice(("adam", "adamw", "fused adam")),
            "lr": _power(c, -3, -2.3),
            "updates": c.randint(240, 400),
            "strength": _power(c, 2.5, 3.3),
        },
    ),
    Condition(
        ("subnormal_parameter",),
        (sick_numbers.SmallLayer,),
        lambda c: {
            **_LOUD,
            "init_scale": 2.0**15,
            "strength": _power(c, -8.2, -7.5),
            "every": c.choice((5, 10)),
        },
        layer="middle.adapter",
    ),
    Condition(
        ("collapse_forecast", "dead_scale"),
        (sick_numbers.EndlessGain,),
        lambda c: {
            **_LOUD,
            "strength": float("inf"),
            "updates": c.randint(125, 250),
            "init_scale": 2.0**16,
            "activations": None,
        },
        incurable=True,
    ),
    Condition(
        ("poisoned_state",),
        (sick_numbers.PoisonedState,),
        lambda c: {
            "optimizer": c.choice(("adam", "adamw")),
            "model": "mlp",
            "strength": c.randint(20, 80),
            "updates": 150,
        },
        incurable=True,
    ),
    Condition(
        ("poisoned_state",),
        (sick_runs.Saving, sick_runs.ResumedPoisoned),
        lambda c: {**_short(c), "optimizer": c.choice(("adam", "adamw")), "model": "mlp"},
        incurable=True,
    ),
    Condition(("uncleared_gradients",), (sick_code.NeverCleared,), lambda _: {"clip": None}),
    Condition(
        ("fused_sgd",),
        (Training,),
        lambda c: {
            "optimizer": "fused sgd",
            "lr": _power(c, -2.5, -2),
            "init_scale": _two(c, 24, 30),
        },
    ),
    Condition(
        ("clip_before_unscale",),
        (sick_code.ClippedScaled,),
        lambda c: {"clip": _power(c, -1, 1), "every": c.choice((5, 10))},
    ),
    Condition(
        ("unscale_in_accumulation",),
        (sick_code.UnscaledWithin,),
        lambda c: {"clip": None, "accumulate": c.randint(2, 8)},
    ),
    Condition(
        ("scale_within_batch",),
        (sick_code.ScaledWithin,),
        lambda c: {
            "strength": _two(c, 1, 5),
            "init_scale": 2.0**10,
            "clip": None,
            "accumulate": c.randint(2, 8),
        },
    ),
    Condition(("cleared_within_batch",), (sick_code.ClearedWithin,), _passes),
    Condition(("unscaled_loss",), (sick_code.Unscaled,)),
    Condition(("unscaled_loss",), (sick_code.GeneratorUnscaled,), _rate),
    Condition(("scaled_twice",), (sick_code.ScaledTwice,)),
    Condition(("backward_twice",), (sick_code.BackwardTwice,)),
    Condition(("never_backward",), (sick_code.NeverBackward,)),
    Condition(("stepped_past",), (sick_code.StepsTwice,)),
    Condition(("unscaled_twice",), (sick_code.UnscaledTwice,), lambda _: {"clip": None}),
    Condition(("cleared_before_step",), (sick_code.ClearedBeforeStep,)),
    Condition(("scaler_made_anew",), (sick_code.ScalerMadeAnew,)),
    Condition(("scaler_under_bf16",), (Training,), lambda _: {"dtype": "bfloat16"}),
    Condition(("fp16_without_scaler",), (Training,), lambda _: {"enabled": False, "clip": None}),
    Condition(
        ("shared_parameter",),
        (sick_code.SharedParameter,),
        lambda _: {"model": "mlp"},
        incurable=True,
    ),
    Condition(("backward_under_autocast",), (sick_code.BackwardUnderAutocast,)),
    Condition(
        ("scheduler_ahead",),
        (sick_code.ScheduledOnSkips,),
        lambda c: {"init_scale": _two(c, 30, 36)},
    ),
    Condition(("fp16_parameters",), (sick_code.HalfParameters,), lambda _: {"model": "mlp"}),
    Condition(("no_update",), (sick_code.NeverUpdated,)),
    Condition(("crashed",), (sick_runs.Killed,), ends="killed", incurable=True),
    Condition(
        ("forgotten_state",),
        (sick_runs.SavingNoScaler, sick_runs.Resumed),
        lambda c: {"init_scale": _two(c, 24, 30), "updates": 120},
    ),
    Condition(
        ("used_before_scale",),
        (sick_runs.Saving, sick_runs.ResumedUnscaled),
        lambda c: {**_short(c), "clip": 1.0},
    ),
    Condition(("moved_outside_training",), (sick_runs.Saving, sick_runs.ResumedByStepping), _short),
    Condition(
        ("ranks_disagree",),
        (sick_runs.NotAveraged,),
        lambda c: {**_short(c), "strength": _power(c, 5, 6)},
        ranks=2,
    ),
    Condition(
        ("sharded_fused",),
        (sick_runs.ShardedFused,),
        lambda _: {"updates": 60, "model": "mlp", "optimizer": "fused adam", "clip": None},
        ranks=2,
    ),
    Condition(("telemetry_gaps",), (Training,), spoil=sick_runs.lose_some, incurable=True),
)
