"""Finds known mistakes in a training loop from its scaler's calls. Reports each once and never raises."""

from ampmon.lints.linter import Linter
from ampmon.lints.rates import Schedule
from ampmon.lints.reporter import LintReporter
from ampmon.lints.unscaled import say_unscaled


__all__ = ["LintReporter", "Linter", "Schedule", "say_unscaled"]
