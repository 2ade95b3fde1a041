"""Random patients from a seed: half are healthy, the others have one fault of random severity."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from campaigns.clinic.conditions import HEALTHY, SICK
from campaigns.clinic.patient import Patient, Plan
from campaigns.clinic.patients import NAMED
from campaigns.clinic.training import Training


COUNT = 300
_MARK = "drawn"


def draw(seed: str, count: int = COUNT) -> list[Patient]:
    """``count`` patients, every other one healthy. A seed determines them, each independently of the others."""
    return [_draw(seed, number) for number in range(count)]


def find(name: str) -> Patient:
    """Return the fixed or random patient with that name. Raises KeyError."""
    if name.startswith(f"{_MARK} "):
        _, number, seed = name.split(maxsplit=2)
        return _draw(seed, int(number))
    return NAMED[name]


def _draw(seed: str, number: int) -> Patient:
    chance = Random(f"{seed}/{number}")
    plan, rate = _plan(chance, number), chance.random()
    alike, draw = chance.choice(SICK if number % 2 else HEALTHY)
    plan |= draw(chance)
    if "lr" not in plan:
        low, high = _RATES[plan["optimizer"]]
        plan["lr"] = low * (high / low) ** rate
    kind = alike.attempts[-1]
    about = (kind.__doc__ or "").splitlines()[0].rstrip(".")
    if alike.rules and kind is Training:
        about = alike.rules[0]
    return replace(alike, name=f"{_MARK} {number} {seed}", about=about, plan=Plan(**plan))


# -- plan of a random patient -------------------------------------------------------------------------------------

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
    *("cnn", "cnn", "transformer", "embedding", "embedding", "tied", "gru", "lstm"),
)
_SLOW = {"gru", "lstm", "transformer"}


def _plan(chance: Random, number: int) -> dict[str, Any]:
    model = chance.choice(_MODELS)
    updates = chance.randint(100, 220)
    return {
        "model": model,
        "optimizer": chance.choice([*_RATES]),
        "batch": chance.choice((8, 16, 24)),
        "updates": max(updates // 2, 80) if model in _SLOW else updates,
        "seed": number,
        "init_scale": 2.0 ** chance.randint(12, 24),
        "growth_interval": chance.choice((200, 500, 1000, 2000, 2000)),
        "accumulate": chance.choice((1, 1, 1, 2, 4)),
        "clip": chance.choice((None, None, 0.5, 1.0)),
        "every": chance.choice((1, 5, 10, 20, "auto")),
        "activations": chance.choice((None, None, None, 10)),
    }
