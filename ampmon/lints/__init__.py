"""What is wrong with a training loop, seen from its scaler: reported once, by warning and event. Never raises."""

from ampmon.lints.linter import Linter
from ampmon.lints.rates import Schedule
from ampmon.lints.reporter import LintReporter
from ampmon.lints.unscaled import say_unscaled


__all__ = ["LintReporter", "Linter", "Schedule", "say_unscaled"]
