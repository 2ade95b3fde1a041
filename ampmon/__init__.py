"""ampmon watches mixed-precision training: loss scale, skipped steps and gradient underflow, as they happen.

Importing it loads no torch: the service reads the wire format from here, on hosts that have none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from ampmon.checking import Preflight, preflight
    from ampmon.config import Config
    from ampmon.feed import Policy, stream
    from ampmon.measuring import measure_on_request
    from ampmon.notebook import show
    from ampmon.process import finish
    from ampmon.run import init, log, metrics
    from ampmon.scaler import GradScaler, watch
    from ampmon.troubles import AmpmonWarning
    from ampmon.unchanged import auto

__version__ = "0.1.0"

__all__ = [
    "AmpmonWarning",
    "Config",
    "GradScaler",
    "Policy",
    "Preflight",
    "__version__",
    "auto",
    "finish",
    "init",
    "log",
    "measure_on_request",
    "metrics",
    "preflight",
    "show",
    "stream",
    "watch",
]

_HOMES = {
    "AmpmonWarning": "ampmon.troubles",
    "Config": "ampmon.config",
    "GradScaler": "ampmon.scaler",
    "Policy": "ampmon.feed",
    "Preflight": "ampmon.checking",
    "auto": "ampmon.unchanged",
    "finish": "ampmon.process",
    "init": "ampmon.run",
    "log": "ampmon.run",
    "measure_on_request": "ampmon.measuring",
    "metrics": "ampmon.run",
    "preflight": "ampmon.checking",
    "show": "ampmon.notebook",
    "stream": "ampmon.feed",
    "watch": "ampmon.scaler",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ampmon' has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from ampmon.installing import install

        raise ModuleNotFoundError(
            f"ampmon.{name} needs PyTorch, which is not installed here: {install('torch')}",
            name="torch",
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
