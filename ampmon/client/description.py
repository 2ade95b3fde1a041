"""What a stream's header says about its scaler, and when to write it again."""

from __future__ import annotations

import math
import sys
from itertools import islice
from traceback import walk_stack
from typing import Any

from ampmon import wire
from ampmon.activations.hooks import ActivationSampler
from ampmon.config import Config
from ampmon.training import outcome
from ampmon.training.call import Call
from ampmon.training.construction import class_name
from ampmon.training.parameters import ParameterRegistry


RULES_EVERY = 50
"""The least number of updates between two checks of a scaler's rules, which may be changed while it trains."""
_FRAMEWORKS = (
    ("transformers.trainer", "transformers.Trainer"),
    ("lightning.pytorch", "lightning.Trainer"),
    ("pytorch_lightning", "lightning.Trainer"),
    ("lightning.fabric", "lightning.Fabric"),
    ("lightning_fabric", "lightning.Fabric"),
    ("accelerate", "accelerate.Accelerator"),
)
"""Modules, each with the class that holds the settings. Earlier ones may call later ones."""
_FRAMES_MAX = 500


class Description:
    """Builds the headers of a scaler's stream. Reads no tensor."""

    def __init__(
        self,
        config: Config,
        registry: ParameterRegistry,
        activations: ActivationSampler,
        call: Call | None,
    ) -> None:
        self._config = config
        self._registry = registry
        self._activations = activations
        self._call = call
        self._init_scale = 65536.0
        self._within = _framework()
        self._looked = 0
        self._rules: tuple[Any, ...] = ()

    def is_old(self, scaler: Any, ordinal: int) -> bool:
        """Whether the scaler's rules differ from its last header.

        Checks only once in `RULES_EVERY` updates: rules that change at every update must not fill the spool.
        """
        if ordinal < self._looked + RULES_EVERY:
            return False
        self._looked = ordinal
        return outcome.rules(scaler) != self._rules

    def header(
        self, scaler: Any, stream: str, ordinal: int, layout: wire.Layout
    ) -> wire.StreamHeader:
        """The header that holds from update ``ordinal`` on. Its initial scale stays that of the first update."""
        self._looked = ordinal
        if not ordinal:
            self._init_scale = _finite(getattr(scaler, "_init_scale", 65536.0))
        # The script may create the scaler before the framework runs.
        self._within = self._within or _framework()
        growth, backoff, interval = self._rules = outcome.rules(scaler)
        return wire.StreamHeader(
            stream=stream,
            layout=layout,
            scaler=_class_name(scaler, self._within),
            device=str(getattr(scaler, "_device", "unknown")),
            enabled=bool(scaler.is_enabled()),
            init_scale=self._init_scale,
            growth_factor=_finite(growth),
            backoff_factor=_finite(backoff),
            growth_interval=_count(interval),
            sample=None if self._config.sample == "all" else self._config.sample,
            budget=self._config.budget if self._config.every == "auto" else None,
            call=None if self._call is None else self._call.to_wire(),
            parameters=tuple(self._registry.parameters),
            modules=self._activations.modules,
        )


def _count(value: Any) -> int:
    """A count limited to what the wire can hold. Scripts use sys.maxsize and infinity to mean never."""
    return int(min(max(value, 0), wire.COUNT_MAX))


def _finite(value: Any) -> float:
    number = float(value)
    return number if math.isfinite(number) else 0.0


def _class_name(scaler: Any, within: str) -> str:
    """The scaler's original class, followed by the framework that created it."""
    made_by = f" ({within})" if within else ""
    return class_name(scaler)[: 256 - len(made_by)] + made_by


def _framework() -> str:
    """Return the framework on the stack, such as "transformers.Trainer", or "". Reads only module names."""
    frames = islice(walk_stack(sys._getframe()), _FRAMES_MAX)
    modules = {str(frame.f_globals.get("__name__", "")) for frame, _ in frames}
    for prefix, name in _FRAMEWORKS:
        if any(each == prefix or each.startswith(f"{prefix}.") for each in modules):
            return name
    return ""
