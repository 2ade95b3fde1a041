"""Decides which iterations of one scaler are sampled, and has their backward passes measured one by one if needed.

A due sample is predicted at the first `scale()` of an iteration, before its first backward pass. It is decided when
gradients are unscaled. Reads no tensor.
"""

from __future__ import annotations

import torch

from ampmon import wire
from ampmon.client.iteration import Iteration
from ampmon.client.measurer import Measurer
from ampmon.client.recorder import Recorder
from ampmon.config import Config
from ampmon.lints.optimizers import parameters_of
from ampmon.probe.arrivals import PassMeasurer
from ampmon.probe.timing import Account
from ampmon.training.parameters import OptimizerNames, ParameterRegistry


class Sampler:
    """Decides when to sample. Where ``.grad`` is a sum, the backward passes are measured one by one.

    ``.grad`` may be a sum of several backward passes or over DDP's ranks. If that was not predicted, as in the very
    first iteration, nothing is sampled; the next iteration is.
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
        self._arrivals = PassMeasurer(
            registry.living, config.sample, measurer.report, account, measurer.timer
        )
        self._recorder: Recorder | None = None
        self.layout: wire.Layout = "replicated"
        self._scalings = 0
        """Losses scaled in the current iteration."""
        self._usual = 1
        """Losses scaled in the last iteration."""

    def here(self) -> bool:
        """Whether this rank takes samples."""
        rank, ranks = self._recorder.rank if self._recorder else 0, self._ranks
        return rank in ranks if ranks is not None else rank == 0 or self.layout == "sharded"

    @property
    def _reduced(self) -> bool:
        """Whether gradients may be reduced over ranks with the same parameters."""
        return self._recorder is not None and self._recorder.world_size > 1

    def scaling(self) -> None:
        """Called when a loss is scaled, before its backward pass."""
        self._scalings += 1
        if self._scalings > 1 or not self._sums(self._usual) or not self.here():
            return
        if 0 in map(self._budget.until_due, self._optimizers.expected()):
            self._arrivals.begin(self._usual, reduced=self._reduced)

    def _sums(self, scalings: int) -> bool:
        """Whether gradients after this many scaled losses are sums whose parts can be measured."""
        # Over ranks, the gradient of even one loss is a sum.
        return self.layout == "replicated" and scalings > (not self._reduced)

    def unscaling(self, iteration: Iteration, optimizer: torch.optim.Optimizer) -> None:
        """Called when an optimizer's gradients are complete. The first optimizer decides whether to sample."""
        if iteration.sampling is None:
            # If two optimizers begin iterations in turn, each is sampled by its own count of turns.
            turn, spare = self._optimizers.turn(optimizer), self._wants_baseline(optimizer)
            due = self.here() and self._budget.due(turn, spare=spare)
            missed = self._sums(self._scalings) and not self._arrivals.watching
            iteration.sampling = due and not (missed and self._arrivals.usable)
        if self._arrivals.watching:
            self._arrivals.close(parameters_of(optimizer))

    def resume(self, scalings: int) -> None:
        """Go on in an iteration in which the plain gear let this many losses be scaled."""
        self._scalings = scalings

    def ended(self, iteration: Iteration) -> None:
        """Called with `update()`: the iteration has no more backward passes."""
        # No losses are counted if the iteration has none.
        self._usual, self._scalings = self._scalings or self._usual, 0
        arrived = self._arrivals.end()
        if arrived is not None and iteration.sampling:
            iteration.arrived = arrived
            iteration.spans += arrived.spans

    def connect(self, recorder: Recorder | None) -> None:
        """Report to this run from now on."""
        self._recorder = recorder
        self.drop()

    def drop(self) -> None:
        """Drop the current iteration."""
        self._scalings = 0
        self._arrivals.drop()
