"""Observes one scaler: gathers what its hooks see, and hands each update over to be written.

On the training thread, nothing here raises, syncs or blocks. An error is counted and the iteration goes on. On CUDA,
values are copied behind the work that computes them. The record waits for them; training does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampmon import wire
from ampmon.activations.gathering import Lost
from ampmon.activations.hooks import ActivationSampler
from ampmon.client import current_run
from ampmon.client.description import Description
from ampmon.client.following import ScaleFollower
from ampmon.client.gear import PlainGear
from ampmon.client.guard import guarded
from ampmon.client.iteration import (
    CULPRITS_MAX,
    Iteration,
    PendingUpdate,
    memory_peak,
    plain_state,
    report_move,
    taken,
)
from ampmon.client.measure_on_request import Measuring
from ampmon.client.measurer import Measurer, fusable
from ampmon.client.monitor_view import MonitorProperties
from ampmon.client.recorder import Recorder
from ampmon.client.sampler import Sampler
from ampmon.config import Config
from ampmon.lints.linter import Linter
from ampmon.lints.reporter import AGAIN
from ampmon.probe.budget import Budget
from ampmon.probe.gradients import is_sharded
from ampmon.probe.hooks import BackwardOrderLearner
from ampmon.probe.timing import Account
from ampmon.system import signals
from ampmon.training import outcome
from ampmon.training.call import Call
from ampmon.training.outcome import Reading
from ampmon.training.parameters import Models, OptimizerNames, ParameterRegistry
from ampmon.training.series import Stream


class Monitor(MonitorProperties):
    """What `scaler.monitor` shows: how many updates and skips it saw, and what it cost, dropped and found.

    ``updates`` and ``skips`` count updates and skipped optimizer steps. ``samples`` counts updates whose gradients were
    measured. ``captured`` counts updates that went into a CUDA graph, whose replays cannot be seen. ``last_skip`` names
    the parameters that were not finite in the last skip, the first to overflow first. `MonitorProperties` has the other
    attributes. On CUDA the newest values may still be on their way. Reading never syncs.
    """

    def __init__(
        self,
        scaler: Any,
        *,
        model: Models = None,
        name: str | None = None,
        config: Config,
        on_finding: Callable[[wire.Finding], object] | None = None,
        call: Call | None = None,
    ) -> None:
        self.config = config
        self.updates = self.skips = self.samples = self.captured = self._skipped = 0
        self.last_skip: tuple[str, ...] = ()
        self._name = name
        self._on_finding = on_finding
        self.measuring: Measuring | None = None
        # Two registries iterate over it: of parameters and of modules.
        model = list(model) if isinstance(model, Iterator) else model
        self._registry = ParameterRegistry(model)
        self._activations = ActivationSampler(model, config, self.failed)
        self._optimizers = OptimizerNames()
        self._linter = Linter(scaler, self._registry, self._optimizers, self.failed)
        self._order = BackwardOrderLearner(self._registry.living)
        self._budget = Budget(config.every, config.budget)
        self._description = Description(config, self._registry, self._activations, call)
        self._measurer = Measurer(self._registry, config, self.failed)
        self._account = Account(self._budget, self._measurer.timer)
        self.sampler = Sampler(
            config, self._optimizers, self._registry, self._measurer, self._account
        )
        self._fused = fusable(type(scaler))
        self.follower = ScaleFollower(scaler, self.failed)
        self._scale = 0.0
        """The scale after the newest update whose values are on the host; 0 if unknown."""
        self.fresh = False
        """Whether the scaler is known to have been created here, with no state loaded since."""
        self._iteration = Iteration()
        self._begun: int | None = None
        """Id of the optimizer whose first `step()` of the iteration is running."""
        self._raised: int | None = None
        """Id of a reported error that `unscale_` may pass on, or ~id of one that `step` may. Others may reuse it."""
        self._stream: Stream | None = None
        self._recorder: Recorder | None = None
        self.gear: PlainGear | None = None
        """The plain gear while it is engaged, else None."""
        self._plain = PlainGear(self)
        self._connect(scaler)

    def failed(self, where: str, error: Exception) -> None:
        """Count an error of the monitor itself. Re-raise one that a signal handler raised."""
        signals.let_through(error)
        self._connected = self._recorder  # an error of ours would come again
        if self._recorder is not None:
            self._recorder.failed(where, error)

    def stand_aside(self, hook: str) -> None:
        """Drop the iteration, since a CUDA graph is being captured. Count its update; replays cannot be seen."""
        self._measurer.stand_aside(self._iteration)
        self._iteration = Iteration()
        self._activations.drop()
        self.sampler.drop()
        if hook != Monitor.after_update.__name__:
            return
        self.captured += 1
        self.follower.decides = False  # replays move the scale unseen
        if self.captured == 1 and self._stream is not None:
            self._stream.event("captured", ordinal=self._stream.ordinal)

    def begins(self, *, fresh: bool) -> None:
        """Note that the scaler starts: ``fresh`` if it was just created here, else with a loaded state."""
        self.fresh = fresh
        self._linter.begins(loaded=not fresh, idle=not self._iteration.losses)

    # -- hooks, in the order an iteration calls them ------------------------------------------------

    @guarded
    def scaling(self, scaler: Any, outputs: Any) -> None:
        """Called before `scale()`, with the loss: an iteration has begun."""
        if self._connected is not current_run.current():
            self._connect(scaler)
        self._iteration.keep(outputs)
        if self._linter.early:
            self._linter.scaling(outputs)
        if self._recorder is not None and self._stream is not None:
            self._stream.updating = True
            self._recorder.recent = self._stream
            self.sampler.scaling()

    @guarded
    def scaled(self, outputs: Any) -> None:
        """Called after `scale()`, with the scaled loss."""
        if self._linter.early:
            self._linter.scaled(outputs)

    @guarded
    def before_unscale(
        self, scaler: Any, optimizer: Optimizer, inv_scale: Tensor, allow_fp16: bool
    ) -> None:
        """Called before `_unscale_grads_`. ``allow_fp16`` says whether that accepts fp16 gradients."""
        if self._stream is None:
            return
        started = self._account.clock()
        self._raised = None
        iteration = self._iteration
        iteration.calls.append(~id(optimizer))
        self.meet(scaler, optimizer)
        if self._linter.early:
            self._linter.unscaling(optimizer, explicit=id(optimizer) not in iteration.steps)
        self.sampler.unscaling(iteration, optimizer)
        # Parameters that were frozen when their optimizer was met may have gradients by now.
        if iteration.sampling:
            self.meet(scaler, optimizer, again=True)
        fused, dying = self._fused[allow_fp16], self._scale < outcome.DYING_SCALE
        self._measurer.before_unscale(optimizer, iteration, inv_scale, fused=fused, dying=dying)
        self._account.spend(started)

    def unscale(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor
    ) -> dict[torch.device, Tensor] | None:
        """Unscale and measure in one pass, as `_unscale_grads_` would. None if that has to unscale instead."""
        if self._measurer.set_aside is None:
            return None
        started = self._account.clock()
        found = self._measurer.unscale(optimizer, self._iteration, inv_scale, found_inf)
        self._account.spend(started)
        return found

    @guarded
    def after_unscale(self, optimizer: Optimizer, found: dict[torch.device, Tensor]) -> None:
        """Called after an optimizer's gradients are unscaled and checked. On a CPU, overflows are known by now."""
        if self._stream is not None:
            started = self._account.clock()
            iteration = self._iteration
            deferred = self.follower.decides and iteration.unscales_in_step(id(optimizer))
            self._measurer.after_unscale(optimizer, iteration, found, deferred=deferred)
            self._account.spend(started)

    @guarded
    def stepping(self, scaler: Any, optimizer: Optimizer) -> None:
        self._raised = self._begun = None
        self._iteration.calls.append(id(optimizer))
        if id(optimizer) not in self._iteration.steps:
            self._begun = id(optimizer)
            path = outcome.step_path(scaler, optimizer)
            self._iteration.steps[id(optimizer)] = taken(self._optimizers.name(optimizer), path)
            self._linter.stepping(optimizer, path)

    def deciding(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Called before `step()` reads an optimizer's found_inf. Return a state with it on the host."""
        # Not guarded: an error of the device is the training's, as in the stock step.
        state, overflowed = self.follower.decide(state)
        if overflowed is not None:
            self.decided(optimizer, overflowed)
        return state

    @guarded
    def decided(self, optimizer: Optimizer, overflowed: dict[torch.device, Tensor]) -> None:
        """Note on which devices an optimizer's gradients overflowed, if on any: the host knows that now."""
        iteration = self._iteration
        iteration.found[id(optimizer)] = bool(overflowed)
        # Gradients that `unscale_` unscaled may be clipped by now, which spreads NaN.
        if overflowed and iteration.unscales_in_step(id(optimizer)):
            self._measurer.search(optimizer, iteration, overflowed)

    @guarded
    def before_update(self, scaler: Any) -> None:
        """Called before `update()` changes the scale and forgets what each optimizer found."""
        self._raised = None
        if self._stream is not None:
            started = self._account.clock()
            self.sampler.ended(self._iteration)
            self._iteration.before = self.follower.before(scaler, self._iteration)
            self._account.spend(started)

    @guarded
    def after_update(self, scaler: Any, manual: bool) -> None:
        """Called after `update()`: hand over the record, or an event if no optimizer stepped."""
        started = self._account.clock()
        stream, iteration, before = self._stream, self._iteration, self._iteration.before
        self._iteration = Iteration()
        if stream is None or before is None:
            return
        after, check = self.follower.after(scaler, iteration, manual=manual)
        self._scale = 0.0 if manual else self._scale
        if not iteration.steps:
            self._linter.moved()
            report_move(stream, before, after, manual, self._moved)
            return
        duration = self._account.lap(started)
        self.samples += (sampled := bool(iteration.samples))
        iteration.activations, beside = self._activations.end()
        infers = not outcome.keeps_found(scaler)
        self._measurer.ask_losses(iteration, infers=infers)
        known: dict[str, Any] = {
            "duration": duration,
            "cost": self._account.settle(duration, beside, iteration.spans, sampled=sampled),
            "fresh": self.fresh and not (stream.ordinal or self.updates),
        }
        if sampled:
            known |= {"interval": self.interval, "over_budget": self.over_budget}
            known["memory_peak"] = memory_peak()
        pending = PendingUpdate(
            stream=stream,
            ordinal=stream.ordinal,
            iteration=iteration,
            after=after,
            manual=manual,
            growth_interval=getattr(scaler, "_growth_interval", 0),
            infers_skips=infers,
            order=self._order,
            known=known,
            rates_moved=self._linter.updated(iteration.steps),
            schedule=self._linter.schedule,
            done=partial(self._written, check, stream.ordinal),
        )
        self._order.updated()
        pending.submit()
        if self._description.is_old(scaler, stream.ordinal):
            self._describe(scaler)
        self._account.handed_over(started, sampled=sampled)
        if self.measuring is not None:
            self.measuring.look(duration)
        self._plain.engage(scaler, pending)
        if self._activations.begin(stream.ordinal, self.sampler.here()):
            self._describe(scaler)

    @guarded
    def raised(self, scaler: Any, where: str, error: BaseException, optimizer: Any = None) -> None:
        """Write an event for an error that the stock scaler raised. The caller still gets the error."""
        if self._stream is None or self._raised in (id(error), ~id(error)):
            return
        self._raised = id(error) if where == "unscale_" else None
        detail: dict[str, Any] = {"where": where, "type": type(error).__name__}
        detail["message"] = str(error)[:500]
        if optimizer is not None:
            if self._begun != id(optimizer) and id(optimizer) in self._iteration.steps:
                self._linter.say("no_update")
            if self._begun == id(optimizer):  # not a step taken earlier in this iteration
                self._iteration.steps.pop(id(optimizer), None)
                self._begun = None
            self.meet(scaler, optimizer)
            detail["optimizer"] = self._optimizers.name(optimizer)
            if fp16 := self._measurer.fp16(optimizer)[:CULPRITS_MAX]:
                detail["fp16_parameters"] = fp16
        self._linter.refused(scaler, where, error, optimizer)
        self._stream.event("step_raised", ordinal=self._stream.ordinal, **detail)

    @guarded
    def unscale_raised(self, scaler: Any, error: BaseException, optimizer: Any) -> None:
        """Report an error of `unscale_()`, such as a second call, unless `_unscale_grads_` has reported it already."""
        if self._raised != id(error):
            self._raised = self._begun = None
            again = ~id(optimizer) in self._iteration.calls
            if again and id(optimizer) not in self._iteration.steps:
                self._linter.say("unscale_in_accumulation", **AGAIN)
            self.raised(scaler, "unscale_", error, optimizer)
        self._raised = ~id(error)

    @guarded
    def state_loaded(self, state: dict[str, Any]) -> None:
        """Called after `load_state_dict()`: the scaler goes on with a loaded state."""
        self._scale = 0.0
        self.begins(fresh=False)
        if self._stream is not None:
            self._stream.event("state_loaded", ordinal=self._stream.ordinal, **plain_state(state))

    # -- measuring ----------------------------------------------------------------------------------

    def _written(
        self,
        check: Callable[[Reading], None],
        ordinal: int,
        steps: Sequence[wire.OptimizerStep],
        skips: int,
        before: Reading,
        after: Reading,
        gradients: wire.Gradients | None,
        lost: Lost | None,
    ) -> None:
        check(after)
        self._activations.lost(ordinal, lost)
        self.updates += 1
        self.skips += skips
        self._skipped += skips > 0
        self._sample = gradients or self._sample
        if skips:
            culprits = [culprit.parameter for step in steps for culprit in step.culprits]
            met = self._registry.parameters
            self.last_skip = tuple(met[index].name for index in culprits) or self.last_skip
        if skips or self._linter.early or self._linter.streak:
            self._linter.written(steps, skips)
        self._moved(before, after)

    def _moved(self, before: Reading, after: Reading) -> None:
        """Called for each `update()` in order, once the scale before and after it is known."""
        self._scale = self._linter.scale = after.scale
        if before.scale != after.scale:
            self._budget.scale_changed()

    # -- the stream ---------------------------------------------------------------------------------

    def _connect(self, scaler: Any) -> None:
        """Report to the process's current run, which may have changed."""
        run = self._recorder = current_run.current()
        self.sampler.connect(run)
        self._stream = run.stream(self._name) if run is not None else None
        self._iteration = Iteration()
        self._account.restart()
        self._optimizers.restart()
        self._linter.connect(self._stream, run.warn if run is not None else None)
        if run is not None and self._stream is not None:
            self._listen(run, self._stream)
            # Before the header, which lists the modules.
            self._activations.begin(0, self.sampler.here())
            self._describe(scaler)
            if self.measuring is not None:
                self.measuring.announce()
        self._connected = run

    def _describe(self, scaler: Any) -> None:
        if (run := self._recorder) is not None and (stream := self._stream) is not None:
            layout = self.sampler.layout
            run.header(self._description.header(scaler, stream.name, stream.ordinal, layout))

    def meet(self, scaler: Any, optimizer: Optimizer, *, again: bool = False) -> None:
        """Register an optimizer's new parameters; with ``again``, also those that were frozen when it was first met."""
        if not self._registry.meet(optimizer, again=again):
            return
        living = self._registry.living()
        if outcome.is_sharded_scaler(scaler) or any(is_sharded(each) for _, each in living):
            self.sampler.layout = "sharded"
        self._order.watch()  # the order in which backward passes reach the new parameters
        self._describe(scaler)
