"""Patients drawn at random by a seed: half of them healthy, the others sick in one way, more or less badly."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from campaigns.clinic import healthy, sick_code, sick_numbers, sick_runs
from campaigns.clinic.patient import Ends, Patient, Plan, Spoil
from campaigns.clinic.patients import PATIENTS
from campaigns.clinic.training import Training


COUNT = 300
_MARK = "drawn"

Draw = Callable[[Random], dict[str, Any]]


def draw(seed: str, count: int = COUNT) -> list[Patient]:
    """``count`` patients, every other one healthy; the same for the same seed, and each apart from the others."""
    return [_draw(seed, number) for number in range(count)]


def find(name: str) -> Patient:
    """The patient of that name, drawn or not. Raises KeyError."""
    if name.startswith(f"{_MARK} "):
        _, number, seed = name.split(maxsplit=2)
        return _draw(seed, int(number))
    return _fixed()[name]


@functools.cache
def _fixed() -> dict[str, Patient]:
    return {patient.name: patient for patient in PATIENTS}


def _draw(seed: str, number: int) -> Patient:
    chance = Random(f"{seed}/{number}")
    name = f"{_MARK} {number} {seed}"
    plan = _plan(chance, number)
    if number % 2 == 0:
        kind = chance.choice(_LOOPS)
        return Patient(
            name=name, about=f"healthy: {_words(kind)}", attempts=(kind,), plan=Plan(**plan)
        )
    sickness = chance.choice(SICKNESSES)
    return Patient(
        name=name,
        about=_words(sickness.attempts[-1])
        if sickness.attempts[-1] is not Training
        else sickness.rules[0],
        attempts=sickness.attempts,
        plan=Plan(**{**plan, **sickness.draw(chance)}),
        rules=sickness.rules,
        layer=sickness.layer,
        ends=sickness.ends,
        spoil=sickness.spoil,
        incurable=sickness.incurable,
    )


def _words(kind: type[Training]) -> str:
    return (kind.__doc__ or "").splitlines()[0].rstrip(".")


# -- what is drawn of every patient -------------------------------------------------------------------------------

_LOOPS = (
    Training,
    Training,
    Training,
    healthy.ClippedByValue,
    healthy.Evaluating,
    sick_code.Scheduled,
)
_RATES = {
    "sgd": (0.02, 0.2),
    "momentum": (0.005, 0.05),
    "adam": (3e-4, 5e-3),
    "adamw": (3e-4, 5e-3),
    "fused adam": (3e-4, 5e-3),
    "adagrad": (5e-3, 5e-2),
}
_MODELS = (
    *("mlp", "mlp", "mlp tanh", "mlp gelu", "mlp layernorm", "mlp batchnorm"),
    *("cnn", "cnn", "transformer", "embedding", "embedding", "tied", "gru"),
)
_SLOW = {"gru", "transformer"}


def _plan(chance: Random, number: int) -> dict[str, Any]:
    model, optimizer = chance.choice(_MODELS), chance.choice([*_RATES])
    low, high = _RATES[optimizer]
    accumulate = chance.choice((1, 1, 1, 2))
    updates = chance.randint(100, 220)
    return {
        "model": model,
        "optimizer": optimizer,
        "lr": low * (high / low) ** chance.random(),
        "batch": chance.choice((8, 16, 24)),
        "updates": max(updates // 2, 80) if model in _SLOW else updates,
        "seed": number,
        "init_scale": 2.0 ** chance.randint(12, 24),
        "growth_interval": chance.choice((200, 500, 1000, 2000, 2000)),
        "accumulate": accumulate,
        "clip": chance.choice((None, None, 0.5, 1.0)),
        "every": chance.choice((1, 5, 10, 20, "auto")),
        "activations": chance.choice((None, None, None, 10)),
    }


# -- what they may be sick of -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sickness:
    """``draw`` gives what of the plan is otherwise than in a healthy one, its strength among it."""

    rules: tuple[str, ...]
    attempts: tuple[type[Training], ...]
    draw: Draw = lambda _: {}
    layer: str | None = None
    ends: Ends = "finished"
    spoil: Spoil | None = None
    incurable: bool = False


def _power(chance: Random, low: float, high: float) -> float:
    """10 to a power between the two."""
    return float(10 ** chance.uniform(low, high))


def _two(chance: Random, low: int, high: int) -> float:
    return 2.0 ** chance.randint(low, high)


_LOUD = {"clip": None, "accumulate": 1, "updates": 160}
"""Nothing beside the sickness that changes what is seen of it."""

SICKNESSES: Sequence[Sickness] = (
    Sickness(
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
    Sickness(
        ("backward_overflow",),
        (sick_numbers.BackwardGain,),
        lambda c: {**_LOUD, "strength": _power(c, 12, 30), "activations": 1, "updates": 100},
        layer="mine",
        incurable=True,
    ),
    Sickness(
        ("forward_overflow",),
        (sick_numbers.ForwardPower,),
        lambda c: {**_LOUD, "strength": _power(c, 1.8, 3), "activations": 1, "updates": 100},
        layer="power",
    ),
    Sickness(
        ("nan_not_overflow",),
        (sick_numbers.NaNData,),
        lambda c: {"model": "mlp", "strength": c.choice((5, 10, 20, 40, 10**6))},
        incurable=True,
    ),
    Sickness(
        ("nan_not_overflow",),
        (sick_numbers.NaNForever,),
        lambda _: {"model": "mlp tanh"},
        incurable=True,
    ),
    Sickness(
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
    Sickness(
        ("subnormal", "flushed"),
        (sick_numbers.ManualScale,),
        lambda c: {
            "model": c.choice(("mlp", "mlp tanh", "mlp gelu")),
            "init_scale": 4.0,
            "strength": _two(c, 0, 4),
            "loss": _power(c, -3, -2),
            "every": 10,
        },
    ),
    Sickness(
        ("scale_floor",),
        (sick_numbers.ManualScale,),
        lambda c: {"strength": _two(c, 28, 36), "init_scale": 2.0**28},
    ),
    Sickness(
        ("sawtooth",),
        (Training,),
        lambda c: {**_LOUD, "growth_interval": c.randint(2, 6), "init_scale": 2.0**16},
    ),
    Sickness(
        ("low_scale",),
        (Training,),
        lambda c: {"loss": _power(c, 8, 11), "updates": 240, "model": "mlp", "clip": 1.0},
    ),
    Sickness(
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
    Sickness(
        ("consecutive_skips",),
        (sick_numbers.Burst,),
        lambda c: {**_LOUD, "model": "mlp", "strength": c.randint(10, 20), "activations": None},
    ),
    Sickness(
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
    Sickness(
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
    Sickness(
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
    Sickness(
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
    Sickness(("uncleared_gradients",), (sick_code.NeverCleared,), lambda _: {"clip": None}),
    Sickness(
        ("fused_sgd",),
        (Training,),
        lambda c: {"optimizer": "fused sgd", "lr": 0.02, "init_scale": _two(c, 24, 30)},
    ),
    Sickness(
        ("clip_before_unscale",),
        (sick_code.ClippedScaled,),
        lambda c: {"clip": _power(c, -1, 1), "every": c.choice((5, 10))},
    ),
    Sickness(
        ("unscale_in_accumulation",),
        (sick_code.UnscaledWithin,),
        lambda _: {"clip": None, "accumulate": 2},
    ),
    Sickness(
        ("scale_within_batch",),
        (sick_code.ScaledWithin,),
        lambda c: {
            "strength": _two(c, 1, 5),
            "init_scale": 2.0**10,
            "clip": None,
            "accumulate": 2,
        },
    ),
    Sickness(("scaler_under_bf16",), (Training,), lambda _: {"dtype": "bfloat16"}),
    Sickness(("fp16_without_scaler",), (Training,), lambda _: {"enabled": False, "clip": None}),
    Sickness(
        ("shared_parameter",),
        (sick_code.SharedParameter,),
        lambda _: {"model": "mlp"},
        incurable=True,
    ),
    Sickness(("backward_under_autocast",), (sick_code.BackwardUnderAutocast,)),
    Sickness(
        ("scheduler_on_skip", "scheduler_ahead"),
        (sick_code.ScheduledOnSkips,),
        lambda c: {"init_scale": _two(c, 30, 36)},
    ),
    Sickness(
        ("scheduler_frozen",),
        (sick_code.ScheduledNever,),
        lambda _: {"updates": 1050, "batch": 8, "model": "mlp", "accumulate": 1},
    ),
    Sickness(("fp16_parameters",), (sick_code.HalfParameters,), lambda _: {"model": "mlp"}),
    Sickness(("no_update",), (sick_code.NeverUpdated,)),
    Sickness(("crashed",), (sick_runs.Killed,), ends="killed", incurable=True),
    Sickness(
        ("forgotten_state",),
        (sick_runs.SavingNoScaler, sick_runs.Resumed),
        lambda c: {"init_scale": _two(c, 24, 30), "updates": 120},
    ),
    Sickness(("telemetry_gaps",), (Training,), spoil=sick_runs.lose_some, incurable=True),
)
