"""Scalers that a run can be replayed under: their settings, and models of how they move the scale.

A model is a small state machine: overflows in, scales out. Torch's follows the documentation of `torch.amp.GradScaler`,
and tests check that. The others follow the documentation and sources of Megatron-LM's `DynamicGradScaler`, DeepSpeed's
`DynamicLossScaler` and fairseq's `DynamicLossScaler`, each with that framework's defaults.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from ctypes import c_float
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeAlias, get_args

from ampmon.numerics.formats import FP32
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.words import in_code


_STOCK = ScalePolicy()
FOREVER = 2**62
"""More updates than any run has."""
_MAX = FP32.max


class ScalerModel:
    """A fixed scale, and the base of scalers that grow by ``factor`` after ``interval`` updates without an overflow.

    ``scale`` applies to the next update. ``ended`` says why training cannot go on, None while it can.
    """

    def __init__(self, scale: float, factor: float = 2.0, interval: int = 0) -> None:
        self.scale = scale
        self.ended: str | None = None
        self._factor = factor
        self._interval = interval if interval > 0 else FOREVER
        self._tracker = 0
        self._capped = False

    def resume(self, tracker: int) -> None:
        """Begin with ``tracker`` updates without an overflow, less those that have already made the scale grow."""
        self._tracker = tracker % self._interval

    @property
    def until_growth(self) -> int:
        """Updates without an overflow until the scale grows. `FOREVER` if it cannot grow."""
        return FOREVER if self._capped else self._interval - self._tracker

    def clean(self, updates: int) -> None:
        """Count updates that did not overflow, at most `until_growth`."""
        self._tracker += updates
        if self._tracker >= self._interval:
            self._grow()

    def overflow(self) -> None:
        """Count an update that overflowed and is skipped."""
        self._tracker, self._capped = 0, False

    def _grow(self) -> None:
        """Grow after an interval without an overflow. The scale stays if fp32 would not be finite."""
        grown = _fp32(self.scale * self._factor)
        self._capped = grown == self.scale or not math.isfinite(grown)
        self.scale = self.scale if self._capped else grown
        self._tracker %= self._interval


class Torch(ScalerModel):
    """`torch.amp.GradScaler`, and the scalers of Megatron-LM and DeepSpeed, which add a hysteresis and a least scale.

    The first overflows after a growth leave the scale, as many as ``hysteresis`` less 1. With ``consecutive``, the
    first ones in a row do. If the scale ``raises``, an overflow at the least scale ends the training, as in DeepSpeed.
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        *,
        hysteresis: int = 1,
        consecutive: bool = False,
        minimum: float = 0.0,
        raises: bool = False,
    ) -> None:
        super().__init__(_clamped(init_scale), growth_factor, growth_interval)
        self._backoff, self._minimum, self._raises = backoff_factor, minimum, raises
        self._hysteresis = self._left = hysteresis
        self._consecutive = consecutive

    def clean(self, updates: int) -> None:
        super().clean(updates)
        if self._consecutive and updates:
            self._left = self._hysteresis

    def overflow(self) -> None:
        super().overflow()
        if self._left > 1:
            self._left -= 1
        elif self._raises and self.scale == self._minimum:
            self.ended = "the scaler raises an error: an overflow at the minimum scale"
        else:
            self.scale = max(_clamped(self.scale * self._backoff), self._minimum)
            if self.scale <= 2.0**-128:
                self.ended = "the scale is dead: 1/scale is infinite, and destroys the weights"

    def _grow(self) -> None:
        super()._grow()
        self._left = self._hysteresis


class Fairseq(ScalerModel):
    """fairseq's: backs off once overflows are a share ``tolerance`` of the updates since the scale last moved.

    It raises at the least scale.
    """

    def __init__(
        self,
        init_scale: float = 2.0**15,
        growth_interval: int = 2000,
        minimum: float = 1e-4,
        tolerance: float = 0.0,
    ) -> None:
        super().__init__(init_scale, 2.0, growth_interval)
        self._minimum, self._tolerance = minimum, tolerance
        self._since, self._overflows = 0, 0

    def clean(self, updates: int) -> None:
        self._since += updates
        super().clean(updates)

    def overflow(self) -> None:
        super().overflow()
        self._since += 1
        self._overflows += 1
        if self._overflows / self._since >= self._tolerance:
            self.scale /= 2.0
            self._since = self._overflows = 0
            if self.scale <= self._minimum:
                self.ended = "the scaler raises an error: an overflow at the minimum scale"

    def _grow(self) -> None:
        super()._grow()
        # fairseq counts its overflows on: only a fall of the scale clears them.
        self._since = self._tracker


def _clamped(scale: float) -> float:
    """A scale in fp32, finite: a header may name any number, and an infinite scale has no level."""
    return min(_fp32(scale), _MAX)


def _fp32(value: float) -> float:
    return c_float(value).value  # much faster than numpy's, in the innermost loop


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

    def machine(
        self, scale: float | None = None, tracker: int = 0, own: ScalePolicy = _STOCK
    ) -> ScalerModel:
        """Return a scaler that begins at ``scale``, or at `init_scale` if that is None, and with a growth tracker.

        Torch's has the hysteresis and the least scale of the run's ``own`` policy.
        """
        made = self._made(self.init_scale if scale is None else scale, own)
        made.resume(tracker)
        return made

    def _made(self, scale: float, own: ScalePolicy) -> ScalerModel:
        if self.kind == "fixed":
            return ScalerModel(scale)
        if self.kind == "fairseq":
            return Fairseq(scale, self.growth_interval or 2000)
        if self.kind == "torch":
            return Torch(
                scale,
                self.growth_factor or 2.0,
                self.backoff_factor or 0.5,
                2000 if self.growth_interval is None else self.growth_interval,
                hysteresis=own.hysteresis,
                consecutive=own.consecutive,
                minimum=own.min_scale,
            )
        interval, raises = self.growth_interval or 1000, self.kind == "deepspeed"
        return Torch(scale, growth_interval=interval, hysteresis=2, minimum=1.0, raises=raises)

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

DEFAULTS: Mapping[Kind, Setting] = {
    "fixed": Setting("fixed", 2.0**16),
    "megatron": Setting("megatron", 2.0**32, growth_interval=1000),
    "deepspeed": Setting("deepspeed", 2.0**16, growth_interval=1000),
    "fairseq": Setting("fairseq", 2.0**15, growth_interval=2000),
}


def recorded(policy: ScalePolicy) -> Setting:
    """Return the setting that a run was recorded with."""
    return Setting("torch", *(getattr(policy, name) for name in NAMES))


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
    "init_scale": "a scale from 2⁻¹²⁶ to 2¹²⁷",
    "growth_factor": "more than 1 and at most 65536",
    "backoff_factor": "less than 1 and at least 2⁻¹⁶",
    "growth_interval": "a whole number of steps, from 1 to 2³¹ - 1",
}

_HOLDS: Mapping[str, Callable[[float, float], bool]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
