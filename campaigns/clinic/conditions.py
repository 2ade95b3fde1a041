"""The faults and severities of random patients, and the kinds of healthy ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeAlias

from campaigns.clinic import healthy, parallel, sick_code, sick_numbers, sick_runs
from campaigns.clinic.adversarial import SickCritic, SickGenerator
from campaigns.clinic.patient import Patient
from campaigns.clinic.patients import NAMED


Draw: TypeAlias = Callable[[Random], dict[str, Any]]
Condition: TypeAlias = tuple[Patient, Draw]
"""A patient, and what draws the fields of its plan to override, such as the strength."""


def _as(name: str, draw: Draw = lambda _: {}, **changed: Any) -> Condition:
    """The condition of a fixed patient. ``changed`` are its other fields that differ."""
    return replace(NAMED[name], **changed), draw


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
    _as("typical"),
    _as("typical"),
    _as("typical", _passes),
    _as("bf16", lambda _: {"dtype": "bfloat16", "enabled": False, "clip": None}),
    _as("clipped by value"),
    _as("evaluated"),
    _as("typical", attempts=(healthy.InFp8,)),
    _as("scheduler gated"),
    _as("two optimizers", _rate),
    _as("resumed", _short),
    _as("two ranks", _short),
    _as("two ranks", _short, attempts=(parallel.Distributed,)),
    _as("norm in fp32"),  # in fp16 it overflows backward in usual batches too
    _as("typical", attempts=(sick_numbers.ForwardSoftmax,)),
    _as("typical", attempts=(sick_numbers.ForwardAttention,)),
)
"""Includes layers that are faulty only at a ``strength`` other than 1."""

_LOUD = {"clip": None, "accumulate": 1, "updates": 160}
"""No clipping or accumulation, which could hide the fault."""

SICK: Sequence[Condition] = (
    _as(
        "learning rate too large",
        lambda c: {
            "model": "mlp",
            "optimizer": "sgd",
            "lr": _power(c, 2.7, 3.5),
            "activations": 1,
            "clip": None,
            "updates": 100,
        },
    ),
    _as(
        "overflow in backward only",
        lambda c: {**_LOUD, "strength": _power(c, 12, 30), "activations": 1, "updates": 100},
    ),
    _as(
        "overflow in forward",
        lambda c: {
            **_LOUD,
            "strength": _power(c, 1.8, 3),
            "activations": 1,
            "updates": 100,
            # At a larger scale, such batches also overflow backward, in another layer.
            "init_scale": 2.0**8,
        },
    ),
    _as("overflow in a norm", lambda c: {**_LOUD, "strength": _power(c, 3.4, 4)}),
    _as(
        "overflow in a norm",
        lambda c: {**_LOUD, "strength": c.uniform(8, 15)},
        attempts=(sick_numbers.ForwardSoftmax,),
        layer="softmax",
    ),
    _as(
        "overflow in a norm",
        lambda c: {**_LOUD, "strength": _power(c, 3, 3.5)},
        attempts=(sick_numbers.ForwardAttention,),
        layer="attention",
    ),
    _as(
        "overflow in a norm",
        lambda c: {**_LOUD, **_rate(c), "strength": _power(c, 3.4, 4)},
        attempts=(SickCritic,),
        layer="critic.middle",
    ),
    _as(
        "overflow in a norm",
        lambda c: {**_LOUD, **_short(c), "strength": _power(c, 3.4, 4)},
        attempts=(parallel.NormOnRanks,),
        ranks=2,
    ),
    _as(
        "overflow in backward only",
        lambda c: {**_LOUD, **_rate(c), "strength": _power(c, 12, 30), "activations": 1},
        attempts=(SickGenerator,),
        layer="generator.middle",
    ),
    _as(
        "overflow within a backward pass",
        lambda c: {**_LOUD, "strength": _power(c, 12, 15), "activations": 1},
    ),
    _as(
        "culprit layer",
        lambda c: {
            **_LOUD,
            **_adam(c),
            "strength": _power(c, 3.7, 4.3),
            "updates": 400,
        },
    ),
    _as(
        "NaN in one batch", lambda c: {"model": "mlp", "strength": c.choice((5, 10, 20, 40, 10**6))}
    ),
    _as("NaN in every batch", lambda _: {"model": "mlp tanh"}),
    _as(
        "NaN in every tenth batch",
        lambda c: {**_short(c), "model": "mlp", "strength": c.choice((5, 10, 20))},
        attempts=(parallel.NaNOnOneRank,),
        ranks=2,
    ),
    _as(
        "NaN in every tenth batch",
        lambda c: {**_short(c), "model": "mlp", "strength": c.choice((5, 10, 20))},
        attempts=(sick_runs.Saving, sick_runs.ResumedOnNaN),
    ),
    _as(
        "growth too slow",
        lambda c: {
            "model": c.choice(("mlp", "mlp tanh", "mlp gelu")),
            "init_scale": _two(c, -4, 1),
            "growth_interval": c.choice((1000, 2000, 10**9)),
            "loss": _power(c, -3, -2),
            "every": 10,
        },
    ),
    _as("static scale too low", lambda c: {**_set_low(c), "every": 10}),
    _as("static scale too low", lambda c: {**_passes(c), **_set_low(c)}),
    _as(
        "range too wide",
        lambda c: {
            **_LOUD,
            **_adam(c),
            "strength": _power(c, 9.5, 10.5),
            "loss": 1e-6,
            "init_scale": 2.0**16,
            "updates": 300,
        },
    ),
    _as("static scale too high", lambda c: {"strength": _two(c, 28, 36), "init_scale": 2.0**28}),
    _as(
        "growth too eager",
        lambda c: {**_LOUD, "growth_interval": c.randint(2, 6), "init_scale": 2.0**16},
    ),
    _as(
        "growth too eager",
        lambda c: {
            **_LOUD,
            **_short(c),
            "growth_interval": c.randint(2, 6),
            "init_scale": 2.0**16,
        },
        attempts=(parallel.Distributed,),
        ranks=2,
    ),
    _as(
        "scale below 1",
        lambda c: {"loss": _power(c, 8, 11), "updates": 240, "model": "mlp", "clip": 1.0},
    ),
    _as(
        "heavy batches",
        lambda c: {
            **_LOUD,
            "model": "mlp",
            "strength": c.randint(15, 40),
            "growth_interval": 10,
            "updates": 400,
        },
    ),
    _as(
        "outlier batches",
        lambda c: {
            **_LOUD,
            "model": c.choice(("mlp tanh", "mlp", "mlp gelu")),
            "strength": _two(c, 11, 15),
            "growth_interval": 10**9,
            "updates": 500,
        },
    ),
    _as(
        "a burst of heavy batches",
        lambda c: {**_LOUD, "model": "mlp", "strength": c.randint(10, 20), "activations": None},
    ),
    _as(
        "learning rate raised",
        lambda c: {
            **_LOUD,
            "model": c.choice(("mlp", "mlp tanh", "cnn")),
            "optimizer": c.choice(("adam", "adamw", "fused adam")),
            "lr": _power(c, -3, -2.3),
            "updates": c.randint(240, 400),
            "strength": _power(c, 2.5, 3.3),
        },
    ),
    _as(
        "one small layer",
        lambda c: {
            **_LOUD,
            "init_scale": 2.0**15,
            "strength": _power(c, -8.2, -7.5),
            "every": c.choice((5, 10)),
        },
    ),
    _as(
        "dead scale",
        lambda c: {
            **_LOUD,
            "strength": float("inf"),
            "updates": c.randint(125, 250),
            "init_scale": 2.0**16,
            "activations": None,
        },
        rules=("collapse_forecast", "dead_scale"),
    ),
    _as(
        "poisoned optimizer",
        lambda c: {
            "optimizer": c.choice(("adam", "adamw")),
            "model": "mlp",
            "strength": c.randint(20, 80),
            "updates": 150,
        },
        layer=None,
    ),
    _as(
        "poisoned optimizer",
        lambda c: {**_short(c), "optimizer": c.choice(("adam", "adamw")), "model": "mlp"},
        attempts=(sick_runs.Saving, sick_runs.ResumedPoisoned),
        layer=None,
    ),
    _as("gradients never cleared", lambda _: {"clip": None}),
    _as(
        "fused SGD",
        lambda c: {
            "optimizer": "fused sgd",
            "lr": _power(c, -2.5, -2),
            "init_scale": _two(c, 24, 30),
        },
    ),
    _as("clipped while scaled", lambda c: {"clip": _power(c, -1, 1), "every": c.choice((5, 10))}),
    _as("unscaled within a batch", lambda c: {"clip": None, "accumulate": c.randint(2, 8)}),
    _as(
        "rescaled within a batch",
        lambda c: {
            "strength": _two(c, 1, 5),
            "init_scale": 2.0**10,
            "clip": None,
            "accumulate": c.randint(2, 8),
        },
    ),
    _as("cleared within each batch", _passes),
    _as("loss not scaled"),
    _as("loss not scaled", _rate, attempts=(sick_code.GeneratorUnscaled,)),
    _as("scaled twice"),
    _as("passed backward twice"),
    _as("a loss that goes nowhere"),
    _as("stepped twice"),
    _as("unscaled twice", lambda _: {"clip": None}),
    _as("cleared before each step"),
    _as("a scaler for each epoch"),
    _as("scaler under bf16", lambda _: {"dtype": "bfloat16"}),
    _as("fp16 without a scaler", lambda _: {"enabled": False, "clip": None}),
    _as("shared parameter", lambda _: {"model": "mlp"}),
    _as("backward under autocast"),
    _as("scheduler ahead", lambda c: {"init_scale": _two(c, 30, 36)}),
    _as("fp16 parameters", lambda _: {"model": "mlp"}),
    _as("update() forgotten"),
    _as("killed"),
    _as("scaler not restored", lambda c: {"init_scale": _two(c, 24, 30), "updates": 120}),
    _as("resumed without scale()", lambda c: {**_short(c), "clip": 1.0}),
    _as("stepped by a load", _short),
    _as("gradients not averaged", lambda c: {**_short(c), "strength": _power(c, 5, 6)}),
    _as(
        "sharded and fused",
        lambda _: {"updates": 60, "model": "mlp", "optimizer": "fused adam", "clip": None},
    ),
    _as("records lost"),
)
