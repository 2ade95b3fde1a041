"""Finds known mistakes in a training loop from its scaler's calls. Reports each once and never raises."""

from ampmon.lints.linter import Linter
from ampmon.lints.losses import say_unscaled
from ampmon.lints.optimizers import Schedule


__all__ = ["Linter", "Schedule", "say_unscaled"]
