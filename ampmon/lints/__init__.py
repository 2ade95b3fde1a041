"""What is wrong with a training loop, seen from its scaler: told once, as a warning and as an event. Never raises."""

from ampmon.lints.linter import Linter
from ampmon.lints.precision import computes_in
from ampmon.lints.rates import Schedule
from ampmon.lints.teller import Teller


__all__ = ["Linter", "Schedule", "Teller", "computes_in"]
