"""Watches one scaler's training loop for known mistakes and reports each once.

The monitor's hooks call it on the training thread. Most checks cover only the first updates; later only a few
attributes are read. It never syncs, patches no user object and keeps none alive.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec

import torch

from ampmon import wire
from ampmon.lints.losses import Losses, computes_in, scaled_before
from ampmon.lints.optimizers import (
    STEPPED,
    WAITING,
    Rates,
    Schedule,
    Waiting,
    beginning,
    begins_with_leftovers,
    constructor_of,
    has_no_scale,
    look,
    made_anew,
    parameters_of,
    why_no_gradients,
)
from ampmon.lints.passes import GradientWatcher, watchable
from ampmon.lints.reporter import UNSTEPPED, UNSTEPPED_MAX, UPDATED, LintReporter
from ampmon.training.outcome import is_sharded_scaler
from ampmon.training.parameters import OptimizerNames, ParameterRegistry


P = ParamSpec("P")

LOOKS = (3, 30)
"""After this many consecutive skips due to NaN, weights and optimizer states are checked."""
LOADED = (
    "The scale from `load_state_dict()` takes effect at the first `scale()`, so scale the first loss after a resume "
    "too. If loading the optimizer runs this step, load the scaler last."
)
UNSCALED = "Gradients that were made without `scale()` must not be divided by the scale."


def harmless(
    look: Callable[Concatenate[Linter, P], None],
) -> Callable[Concatenate[Linter, P], None]:
    """Wrap a method so that it checks only for a stream, and an error in it is reported and ends all checks."""

    @functools.wraps(look)
    def guard(linter: Linter, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            if linter._reporter.connected:
                look(linter, *args, **kwargs)
        except Exception as error:
            linter.give_up(error)

    return guard


@dataclass(slots=True)
class _SeenOptimizer:
    optimizer: weakref.ref[torch.optim.Optimizer]
    watcher: GradientWatcher | None
    """Watches its first updates."""
    held: list[int]
    """Ids of its parameters when it was first seen."""
    waiting: Waiting
    unscaled: bool = False
    rates: Rates = field(default_factory=Rates)
    named: bool = False
    """Whether its parameters have names, as from its first unscaling on, and were checked for fp16."""


class Linter:
    """The checks of one scaler. Never raises: an error is reported and ends the checks."""

    def __init__(
        self,
        scaler: Any,
        registry: ParameterRegistry,
        names: OptimizerNames,
        report: Callable[[str, Exception], None],
    ) -> None:
        self._registry = registry
        self._names = names
        self._report = report
        self._reporter = LintReporter()
        self.connect, self.say = self._reporter.connect, self._reporter.say
        self._seen: dict[int, _SeenOptimizer] = {}
        self.early = True
        """Whether checks of the first updates remain. Later only `stepping` and `updated` check the loop."""
        self._sharded = is_sharded_scaler(scaler)
        self._scaled = 0
        self._at_risk: set[str] = set()
        """Names of fused SGDs whose first step is not written yet."""
        self.streak = 0
        """Consecutive skips due to NaN."""
        self._suspect = False
        self.scale = 0.0
        """The scale after the newest update whose values are on the host; 0 if unknown."""
        self._moved = False
        self._idle = self._loaded = self._strayed = False
        """Whether no loss was scaled since the scaler was made or loaded; whether it was loaded; whether it updated."""
        self.schedule = Schedule()
        self._losses = Losses(self._begins, report)
        self._scaler, self._beginning = weakref.ref(scaler), beginning(scaler)

    @property
    def looking(self) -> bool:
        """Whether the next update must be checked."""
        return self.early or self._suspect or self.streak > 0

    def give_up(self, error: Exception) -> None:
        """Report an error and end all checks."""
        self._report("lint", error)
        self._reporter.connect(None, None)
        self.early = self._suspect = False
        self.streak = 0

    # -- called by the monitor, in this order --------------------------------------------------------

    def begins(self, *, loaded: bool, idle: bool) -> None:
        """Called when the scaler is created or, with ``loaded``, gets a state. ``idle``: no scaled loss is pending."""
        self.early, self._idle = True, idle
        self._loaded, self._strayed = loaded, False
        if loaded:
            self._beginning = None

    @harmless
    def scaling(self, outputs: Any) -> None:
        """Called before `scale()`, with the loss."""
        strayed = self._idle and self._strayed
        self._idle = self._strayed = False
        if strayed:
            when = " after its state was loaded" if self._loaded else ""
            self._reporter.say("moved_outside_training", when=when)
        if not self._scaled and computes_in(outputs) is torch.bfloat16:
            self._reporter.say("scaler_under_bf16")
        if scaled_before(outputs):
            self._reporter.say("scaled_twice")
        self._scaled += 1
        if self._scaled == UNSTEPPED_MAX and not self._seen:
            self._reporter.say("no_step", **UNSTEPPED)
        for watcher in self._watchers():
            watcher.scaling(outputs)

    @harmless
    def scaled(self, outputs: Any) -> None:
        """Called after `scale()`, with the scaled loss."""
        self._losses.scaled(outputs)

    def _begins(self) -> None:
        for watcher in self._watchers():
            watcher.begins()

    def drop(self) -> None:
        """Unhook the gradients that are watched."""
        for watcher in self._watchers():
            watcher.close()

    def _watchers(self) -> list[GradientWatcher]:
        return [seen.watcher for seen in self._seen.values() if seen.watcher is not None]

    @harmless
    def unscaling(self, optimizer: torch.optim.Optimizer, *, explicit: bool) -> None:
        """Called before an optimizer's gradients are unscaled: by `unscale_` if ``explicit``, else in `step`."""
        seen = self._of(optimizer)
        if not seen.named:
            seen.named = True
            self._report_fp16(parameters_of(optimizer))
        seen.unscaled |= explicit
        if seen.watcher is not None:
            seen.watcher.unscaling(optimizer, explicit=explicit)

    def stepping(self, optimizer: torch.optim.Optimizer, path: wire.StepPath) -> None:
        """Called before an optimizer's first `step()` in an iteration."""
        seen = self._seen.get(id(optimizer))
        try:  # `harmless` would take 0.2 us in each update of a fused optimizer
            if self.early or seen is None or seen.optimizer() is not optimizer:
                self._step_early(optimizer, path)
            elif seen.rates.differ(optimizer):
                self._moved = True
        except Exception as error:
            self.give_up(error)

    @harmless
    def has_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Called after `step()`."""
        seen = self._seen.get(id(optimizer)) if self.early else None
        if seen is not None and seen.watcher is not None and seen.optimizer() is optimizer:
            seen.watcher.steps.stepped(optimizer)

    def stepped(self, optimizer: torch.optim.Optimizer, steps: int) -> None:
        """Count steps taken without a call of `stepping`. Its next call shows whether the rate has changed."""
        seen = self._seen.get(id(optimizer))
        if seen is not None and seen.optimizer() is optimizer:
            seen.rates.steps += steps

    @harmless
    def refused(
        self,
        scaler: Any,
        where: str,
        error: BaseException,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        """Called when torch raised in a method of the scaler. Report the cause if it is known."""
        if not isinstance(error, AssertionError):
            return
        if has_no_scale(scaler):
            why = LOADED if self._loaded else UNSCALED
            self._reporter.say("used_before_scale", where=where, why=why)
        elif where == "update" and "inf checks" in str(error):
            self._reporter.say("no_step", **UPDATED)
        elif where == "step" and optimizer is not None:
            seen, parameters = self._of(optimizer), parameters_of(optimizer)
            ids = self._registry.of_models()
            # The step that torch refused was counted too.
            found = why_no_gradients(optimizer, seen.held, ids, seen.rates.steps - 1)
            if found is not None:
                self._reporter.say(
                    "no_gradients",
                    list(map(self._name, parameters)),
                    optimizer=self._names.name(optimizer),
                    count=len(parameters),
                    why=found[0],
                    instead=found[1],
                )

    @harmless
    def moved(self) -> None:
        """Called after an `update()` without a step."""
        for watcher in self._watchers():
            watcher.moved()
        self._wait(())

    def updated(self, steps: Collection[int]) -> bool:
        """Called after an update with the ids of the optimizers that stepped. Return whether a rate changed."""
        moved, self._moved = self._moved, False
        self._strayed = True  # matters only if no loss was scaled before
        if self.early or self._suspect:
            self._look_back(steps)
        return moved

    @harmless
    def written(self, steps: Sequence[wire.OptimizerStep], skips: int) -> None:
        """Called for each update in order, once its steps are known. May run on another thread."""
        for step in steps:
            if step.skipped and step.optimizer in self._at_risk:
                self._reporter.say("fused_sgd", optimizer=step.optimizer)
        self._at_risk.difference_update(step.optimizer for step in steps)
        if not skips:
            self.streak = 0
        elif any(culprit.nan != 0 for step in steps for culprit in step.culprits):
            self.streak += 1
            self._suspect |= self.streak in LOOKS

    # -- checks -------------------------------------------------------------------------------------

    @harmless
    def _look_back(self, steps: Collection[int]) -> None:
        self._wait(steps)
        seen = [self._seen[step] for step in steps if step in self._seen]
        for each in seen:
            self._look_at(each)
        optimizers = [optimizer for each in seen if (optimizer := each.optimizer())]
        self._report_shared(optimizers)
        # Such a loop passes the loss itself backward, instead of the scaled one.
        if self._losses.updated() and not self._reporter.knows("unscaled_loss"):
            self._reporter.say("never_backward")
        self.early = self._idle or bool(self._watchers())
        if self._suspect:
            self._suspect = False
            self._reporter.submit(*look(optimizers, self._name, self._reporter))

    def _look_at(self, seen: _SeenOptimizer) -> None:
        if (watcher := seen.watcher) is None:
            return
        watcher.updated(self.scale, alone=len(self._seen) == 1)
        optimizer = seen.optimizer()
        if optimizer is not None and watcher.steps.past(optimizer):
            self._reporter.say("stepped_past", optimizer=self._names.name(optimizer))
        if watcher.over:
            seen.watcher = None

    def _wait(self, steps: Collection[int]) -> None:
        """Count updates, up to a report, in which an optimizer was unscaled but not stepped."""
        for key, seen in self._seen.items():
            if (optimizer := seen.optimizer()) is None:
                continue
            waits, seen.unscaled = seen.unscaled and key not in steps, False
            if did := seen.waiting.updated(optimizer, waits=waits, scale=self.scale):
                name = self._names.name(optimizer)
                # Only an overflow shows whether the loop checks for inf and NaN itself.
                severity = "notice" if did == STEPPED else None
                self.say("unstepped", (), severity, optimizer=name, did=did, count=WAITING)

    @harmless
    def _step_early(self, optimizer: torch.optim.Optimizer, path: wire.StepPath) -> None:
        seen = self._of(optimizer)
        if path == "unscaled" and seen.watcher is not None:
            seen.watcher.stepping(optimizer)
        elif path == "fused" and self._sharded:
            name, constructor = self._names.name(optimizer), constructor_of(optimizer)
            self._reporter.say("sharded_fused", optimizer=name, constructor=constructor)
        self._moved |= seen.rates.differ(optimizer)

    def _of(self, optimizer: torch.optim.Optimizer) -> _SeenOptimizer:
        seen = self._seen.get(id(optimizer))
        if seen is None or seen.optimizer() is not optimizer:
            seen = self._seen[id(optimizer)] = self._meet(optimizer)
            self.early = True
        return seen

    def _meet(self, optimizer: torch.optim.Optimizer) -> _SeenOptimizer:
        parameters = parameters_of(optimizer)
        if made_anew(optimizer, self._scaler, self._beginning):
            self._reporter.say("scaler_made_anew", optimizer=self._names.name(optimizer))
        if begins_with_leftovers(optimizer):
            self._at_risk.add(self._names.name(optimizer))
        # Scripts that create an optimizer for every step must not fill this dict.
        self._seen = {key: seen for key, seen in self._seen.items() if seen.optimizer() is not None}
        watcher = None
        if (parameter := watchable(optimizer)) is not None:
            watcher = GradientWatcher(
                optimizer, parameter, self._losses, self._reporter, self._report, sure=self.early
            )
        held, waiting = list(map(id, parameters)), Waiting(optimizer)
        return _SeenOptimizer(weakref.ref(optimizer), watcher, held, waiting)

    def _report_fp16(self, parameters: Iterable[torch.Tensor]) -> None:
        fp16 = [
            self._name(each)
            for each in parameters
            if each.dtype is torch.float16 and each.requires_grad
        ]
        if fp16 and not self._sharded:
            self._reporter.say("fp16_parameters", fp16, count=len(fp16))

    def _report_shared(self, stepped: Sequence[torch.optim.Optimizer]) -> None:
        holders: dict[int, torch.optim.Optimizer] = {}
        for second in stepped:
            parameters = parameters_of(second)
            if both := [each for each in parameters if id(each) in holders]:
                first = holders[id(both[0])]
                names = [self._name(each) for each in both if holders[id(each)] is first]
                pair = {"first": self._names.name(first), "second": self._names.name(second)}
                self._reporter.say("shared_parameter", names, **pair, count=len(names))
            holders |= dict.fromkeys(map(id, parameters), second)

    def _name(self, parameter: torch.Tensor) -> str:
        index = self._registry.index(parameter)
        return self._registry.parameters[index].name if index is not None else "a parameter"
