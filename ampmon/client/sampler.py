"""Decides which iterations of one scaler are sampled, and has what their backward passes bring looked at.

That a sample is due is foreseen at the first `scale()` of an iteration, before its first backward pass. It is decided
when gradients are unscaled. Reads no tensor.
"""

from __future__ import annotations

import torch

from ampmon import wire
from ampmon.client.iteration import Iteration
from ampmon.client.measurement import Measurer
from ampmon.client.recorder import Recorder
from ampmon.config import Config
from ampmon.lints.optimizers import parameters_of
from ampmon.probe.account import Account
from ampmon.probe.arrivals import Arrivals
from ampmon.training.parameters import OptimizerNames, ParameterRegistry


class Sampler:
    """Where ``.grad`` is a sum, of several backward passes or over DDP's ranks, passes are looked at one by one.

    In an iteration of which that is not foreseen, as the first of all, nothing is sampled: the next one is.
    """

    def __init__(
        self,
        config: Config,
        optimizers: OptimizerNames,
        registry: ParameterRegistry,
        measurer: Measurer,
        account: Account,
    ) -> None:
        self._ranks = config.ranks
        self._budget, self._optimizers = account.budget, optimizers
        self._wants_baseline = measurer.wants_baseline
        self._arrivals = Arrivals(
            registry.living, config.sample, measurer.report, account, measurer.timer
        )
        self._recorder: Recorder | None = None
        self.layout: wire.Layout = "replicated"
        self._scalings = 0
        """Losses scaled in the iteration at hand."""
        self._usual = 1
        """How many there were in the last one."""

    def here(self) -> bool:
        """Whether this rank takes samples."""
        rank, ranks = self._recorder.rank if self._recorder else 0, self._ranks
        return rank in ranks if ranks is not None else rank == 0 or self.layout == "sharded"

    @property
    def _reduced(self) -> bool:
        """Whether gradients may be reduced over ranks that have the same parameters."""
        return self._recorder is not None and self._recorder.world_size > 1

    def scaling(self) -> None:
        """A loss is being scaled: its backward pass is to come."""
        self._scalings += 1
        if self._scalings > 1 or not self._sums(self._usual) or not self.here():
            return
        if not self._budget.until_due(self._optimizers.expected()):
            self._arrivals.begin(self._usual, reduced=self._reduced)

    def _sums(self, scalings: int) -> bool:
        """Whether after so many scaled losses gradients are sums of what could be looked at before."""
        return self.layout == "replicated" and scalings > (not self._reduced)

    def unscaling(self, iteration: Iteration, optimizer: torch.optim.Optimizer) -> None:
        """The gradients of an optimizer are complete: decide, with the first of an iteration, whether it is sampled."""
        if iteration.sampling is None:
            # Where two optimizers begin iterations in turn, each is sampled at its own turns.
            turn, spare = self._optimizers.turn(optimizer), self._wants_baseline(optimizer)
            due = self.here() and self._budget.due(turn, spare=spare)
            missed = self._sums(self._scalings) and not self._arrivals.watching
            iteration.sampling = due and not (missed and self._arrivals.usable)
        if self._arrivals.watching:
            self._arrivals.close(parameters_of(optimizer))

    def ended(self, iteration: Iteration) -> None:
        """`update()` is called: the iteration has no passes to come."""
        # None were counted where the plain gear was left in the middle of it.
        self._usual, self._scalings = self._scalings or self._usual, 0
        arrived = self._arrivals.end()
        if arrived is not None and iteration.sampling:
            iteration.arrived = arrived
            iteration.spans += arrived.spans

    def connect(self, recorder: Recorder | None) -> None:
        """Another run is reported to from now on."""
        self._recorder = recorder
        self.drop()

    def drop(self) -> None:
        """The iteration at hand is not gone on with."""
        self._scalings = 0
        self._arrivals.drop()
