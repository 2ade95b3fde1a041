"""ampmon watches mixed-precision training: loss scale, skipped steps and gradient underflow, as they happen.

Importing it loads no torch: the server uses this package on hosts without torch, for the wire format.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from ampmon.checking import Preflight, preflight
    from ampmon.client.current_run import finish
    from ampmon.client.feed import Policy, stream
    from ampmon.client.measure_on_request import measure_on_request
    from ampmon.client.run import init, log, metrics
    from ampmon.client.scaler import GradScaler, watch
    from ampmon.client.troubles import AmpmonWarning
    from ampmon.config import Config
    from ampmon.notebook import show
    from ampmon.training.built import auto

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
    "AmpmonWarning": "ampmon.client.troubles",
    "Config": "ampmon.config",
    "GradScaler": "ampmon.client.scaler",
    "Policy": "ampmon.client.feed",
    "Preflight": "ampmon.checking",
    "auto": "ampmon.training.built",
    "finish": "ampmon.client.current_run",
    "init": "ampmon.client.run",
    "log": "ampmon.client.run",
    "measure_on_request": "ampmon.client.measure_on_request",
    "metrics": "ampmon.client.run",
    "preflight": "ampmon.checking",
    "show": "ampmon.notebook",
    "stream": "ampmon.client.feed",
    "watch": "ampmon.client.scaler",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ampmon' has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from ampmon.system.installing import install

        raise ModuleNotFoundError(
            f"ampmon.{name} needs PyTorch, which is not installed here: {install('torch')}",
            name="torch",
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
