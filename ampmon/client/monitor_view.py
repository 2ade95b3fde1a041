"""The attributes that a monitor shows beside its counts. Reading them never syncs or blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ampmon import wire
from ampmon.client.findings import FindingListener, of_scaler
from ampmon.client.recorder import Recorder
from ampmon.config import Config
from ampmon.numerics.histogram import Statistics, headroom_bits
from ampmon.numerics.sampling_error import elements_of
from ampmon.probe.budget import Budget
from ampmon.probe.timing import Account
from ampmon.training.parameters import ParameterRegistry
from ampmon.training.series import Stream


class Reporting:
    """The attributes that the run provides: those of the run, and the findings of one stream."""

    _recorder: Recorder | None
    _stream: Stream | None

    @property
    def errors(self) -> int:
        return self._recorder.errors if self._recorder else 0

    @property
    def dropped(self) -> int:
        return self._recorder.dropped if self._recorder else 0

    @property
    def thinned(self) -> int:
        return self._recorder.thinned if self._recorder else 0

    @property
    def run_id(self) -> str | None:
        return str(run.run_id) if (run := self._recorder) and run.run_id else None

    @property
    def url(self) -> str | None:
        return self._recorder.options.url if self._recorder else None

    @property
    def findings(self) -> tuple[wire.Finding, ...]:
        if self._recorder is None or self._stream is None:
            return ()
        return of_scaler(self._recorder.findings.newest, self._stream.name)

    @property
    def should_stop(self) -> bool:
        return any(finding.stop for finding in self.findings)


class MonitorProperties(Reporting):
    """The properties of a monitor that read from its parts.

    - ``overhead``: share of the training time that the monitor took on the training thread and on devices.
    - ``interval``: current number of updates between samples.
    - ``over_budget``: whether the monitor exceeds its budget even at the longest interval allowed.
    - ``errors``: errors of the monitor itself.
    - ``dropped``: lost records. ``thinned``: records kept without their samples for lack of room.
    - ``findings``: what the server last found wrong with this scaler's training, the worst first. Each is an
      `ampmon.wire.Finding`. Empty offline.
    - ``should_stop``: whether a finding says that continuing the run is a waste.
    - ``run_id``, ``url``.
    """

    config: Config
    updates: int
    skips: int
    samples: int
    _scale: float
    _skipped: int
    """Updates in which an optimizer skipped."""
    _sample: wire.Gradients | None = None
    """The newest sample."""
    _shares: tuple[wire.Gradients, dict[str, float]] | None = None
    """The last sample that `metrics` used, and the values it computed from it."""
    _registry: ParameterRegistry
    _account: Account
    _budget: Budget
    _on_finding: Callable[[wire.Finding], object] | None
    _connected: Recorder | None = None
    """The run that `_connect` has finished with: a signal handler's exception may end it."""
    _listener: FindingListener | None = None

    def _listen(self, run: Recorder, stream: Stream) -> None:
        """Show this monitor in the run, and pass findings to ``on_finding``."""
        if self._on_finding is not None:
            self._listener = FindingListener(stream.name, self._on_finding)
            run.findings.listen(self._listener)
        run.shown[stream.name] = self

    @property
    def overhead(self) -> float:
        return self._account.overhead

    @property
    def interval(self) -> int:
        return self._budget.every

    @property
    def over_budget(self) -> bool:
        return self._budget.exceeded

    def metrics(self) -> dict[str, float]:
        """The newest known values, for your own tracker: ``wandb.log({...} | scaler.monitor.metrics())``.

        - ``amp/scale``
        - ``amp/skipped_total``, the number of skipped updates, and ``amp/skip_rate``, their share of all updates
        - ``amp/subnormal_share``, ``amp/zero_share`` and ``amp/headroom_bits``, of the newest sample
        - ``amp/overhead``

        Values that are not known yet or not finite are left out. Never syncs or blocks. On CUDA the newest updates may
        still be on their way.
        """
        found = rates(self._scale, self.updates, self._skipped) | {"amp/overhead": self.overhead}
        sample = self._sample
        if sample is not None:
            if self._shares is None or self._shares[0] is not sample:
                every = self.config.sample
                parts = self._registry.parameters, None if every == "all" else every
                self._shares = sample, shares(sample, *parts)
            found |= self._shares[1]
        return found

    def __repr__(self) -> str:
        return (
            f"<ampmon.Monitor of run {self.run_id}: {self.updates} updates, {self.skips} skips, "
            f"{self.samples} samples, one in {self.interval} updates, overhead {self._cost()}, "
            f"{self.dropped} dropped, {self.thinned} thinned, {self.errors} errors>"
        )

    def _cost(self) -> str:
        if self._budget.share is None:
            return f"{self.overhead:.2%}"
        exceeded = ", exceeded" if self.over_budget else ""
        return f"{self.overhead:.2%} (budget {self._budget.share * 100:.3g}%{exceeded})"


def rates(scale: float, updates: int, skipped: int) -> dict[str, float]:
    """Metrics of a loss scale that need no gradients. A ``scale`` of 0 means unknown."""
    found = {"amp/scale": scale} if scale and math.isfinite(scale) else {}
    found["amp/skipped_total"] = skipped
    return found | ({"amp/skip_rate": skipped / updates} if updates else {})


def shares(
    sample: wire.Gradients, parameters: Sequence[wire.Parameter], elements: int | None
) -> dict[str, float]:
    """Metrics of a sample's parameters on fp16's grid. ``elements`` were sampled per parameter; None means all."""
    statistics = Statistics.from_wire(sample)
    statistics = statistics.select(statistics.grid_mask & (statistics.looked > 0))
    if not len(statistics):
        return {}
    numel = np.array([parameters[index].numel for index in statistics.parameters])
    stand_for = elements_of(statistics.looked, numel, elements)
    weight = stand_for / statistics.looked / stand_for.sum()
    classes = statistics.classes()
    found = {
        "amp/subnormal_share": float((classes.subnormal * weight).sum()),
        "amp/zero_share": float((classes.zero * weight).sum()),
        "amp/headroom_bits": float(headroom_bits(statistics.amax.max())),
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}
