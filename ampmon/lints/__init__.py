"""What is wrong with a training loop, seen from its scaler: told once, as a warning and as an event. Never raises."""

from ampmon.lints.linter import Linter
from ampmon.lints.rates import Schedule
from ampmon.lints.teller import Teller
from ampmon.lints.unscaled import say_unscaled


__all__ = ["Linter", "Schedule", "Teller", "say_unscaled"]
