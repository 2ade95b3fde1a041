"""What a monitor shows of itself beside its counts. Reading any of it neither syncs nor blocks."""

from __future__ import annotations

from ampmon import wire
from ampmon.findings import of_scaler
from ampmon.probe.account import Account
from ampmon.probe.budget import Budget
from ampmon.recorder import Recorder
from ampmon.stream import Stream


class Shown:
    """The properties of a monitor that others keep for it."""

    updates: int
    skips: int
    samples: int
    _account: Account
    _budget: Budget
    _recorder: Recorder | None
    _stream: Stream | None

    @property
    def overhead(self) -> float:
        return self._account.overhead

    @property
    def interval(self) -> int:
        return self._budget.every

    @property
    def over_budget(self) -> bool:
        return self._budget.exceeded

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
