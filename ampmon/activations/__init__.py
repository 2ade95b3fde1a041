"""Activations, on request: hooks that see what modules put out, and the gradients that come back to it.

Owns which modules are hooked, when, and what is gathered of one iteration. Knows no scaler and no optimizer.
"""

from ampmon.activations.gathering import ActivationSample, Gathering, Lost
from ampmon.activations.hooks import ActivationSampler
from ampmon.activations.modules import ModuleRegistry


__all__ = ["ActivationSample", "ActivationSampler", "Gathering", "Lost", "ModuleRegistry"]
