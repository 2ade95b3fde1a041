"""The policies that a run can be replayed under, by name, and their settings."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeAlias, get_args

from ampmon_server.analysis.policy.scaler_models import (
    Fairseq,
    Fixed,
    Hysteresis,
    ScalerModel,
    Torch,
)
from ampmon_server.model.case import ScalePolicy
from ampmon_server.model.words import in_code


Kind: TypeAlias = Literal["torch", "fixed", "megatron", "deepspeed", "fairseq"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Setting:
    """A policy and its settings. Settings that the policy lacks are None."""

    kind: Kind
    init_scale: float
    growth_factor: float | None = None
    backoff_factor: float | None = None
    growth_interval: int | None = None

    def machine(self, scale: float | None = None) -> ScalerModel:
        """Return a scaler that begins at ``scale``, or at `init_scale` if that is None."""
        return _MACHINES[self.kind](self if scale is None else replace(self, init_scale=scale))

    def code(self, base: ScalePolicy) -> str:
        """Return code that applies the setting to a scaler with policy ``base``. Empty if torch has no such policy."""
        if self.kind == "fixed":
            return f"scaler.update({in_code(self.init_scale)})  # after each scaler.step(optimizer)"
        if self.kind != "torch":
            return ""
        was = recorded(base)
        given = ", ".join(
            f"{name}={in_code(getattr(self, name))}"
            for name in NAMES
            if getattr(self, name) != getattr(was, name)
        )
        return f"scaler = ampmon.GradScaler({given})"


NAMES = tuple(field.name for field in fields(Setting))[1:]

TORCH = Setting("torch", 2.0**16, 2.0, 0.5, 2000)

DEFAULTS: Mapping[Kind, Setting] = {
    "torch": TORCH,
    "fixed": Setting("fixed", 2.0**16),
    "megatron": Setting("megatron", 2.0**32, growth_interval=1000),
    "deepspeed": Setting("deepspeed", 2.0**16, growth_interval=1000),
    "fairseq": Setting("fairseq", 2.0**15, growth_interval=2000),
}

_MACHINES: Mapping[Kind, Callable[[Setting], ScalerModel]] = {
    "torch": lambda of: Torch(
        of.init_scale,
        of.growth_factor or 2.0,
        of.backoff_factor or 0.5,
        2000 if of.growth_interval is None else of.growth_interval,
    ),
    "fixed": lambda of: Fixed(of.init_scale),
    "megatron": lambda of: Hysteresis(of.init_scale, of.growth_interval or 1000, raises=False),
    "deepspeed": lambda of: Hysteresis(of.init_scale, of.growth_interval or 1000, raises=True),
    "fairseq": lambda of: Fairseq(of.init_scale, of.growth_interval or 2000),
}


def recorded(policy: ScalePolicy) -> Setting:
    """Return the setting that a run was recorded with."""
    return Setting(
        "torch",
        policy.init_scale,
        policy.growth_factor,
        policy.backoff_factor,
        policy.growth_interval,
    )


def changed(kind: Kind, base: ScalePolicy, **given: float | None) -> Setting:
    """Return a policy's setting with the ``given`` values.

    For torch's policy the rest is the run's own, else the policy's defaults. Raises ValueError with two arguments: the
    name of the wrong value, and what is wrong with it.
    """
    setting = recorded(base) if kind == "torch" else DEFAULTS[kind]
    changes = {
        name: int(value) if name == "growth_interval" else value
        for name, value in given.items()
        if value is not None
    }
    for name, value in changes.items():
        _check(setting, name, value)
    return replace(setting, **changes)  # type: ignore[arg-type]  # an interval is whole, as was checked


def _check(setting: Setting, name: str, value: float) -> None:
    if getattr(setting, name) is None:
        has = " and ".join(each for each in NAMES if getattr(setting, each) is not None)
        raise ValueError(
            name, f"the policy {setting.kind!r} does not have this setting: it has {has}"
        )
    if not all(_HOLDS[how](value, bound) for how, bound in BOUNDS[name].items()):
        raise ValueError(name, f"must be {_WORDS[name]}, not {value}")


BOUNDS: Mapping[str, Mapping[str, float]] = {
    "init_scale": {"minimum": 2.0**-126, "maximum": 2.0**127},
    "growth_factor": {"exclusiveMinimum": 1, "maximum": 2**16},
    "backoff_factor": {"minimum": 2.0**-16, "exclusiveMaximum": 1},
    "growth_interval": {"minimum": 1, "maximum": 2**31 - 1},
}
"""Bounds of each setting, as JSON Schema keywords."""

_WORDS: Mapping[str, str] = {
    "init_scale": "a scale from 2^-126 to 2^127",
    "growth_factor": "more than 1 and at most 65536",
    "backoff_factor": "less than 1 and at least 2^-16",
    "growth_interval": "a whole number of steps, from 1 to 2^31 - 1",
}

_HOLDS: Mapping[str, Callable[[float, float], bool]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
