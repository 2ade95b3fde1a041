"""The skip ledger by update: what is known of each skipped one from its rows of all optimizers and ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ampmon_server.case import ScalerCase, Skip


@dataclass(frozen=True, slots=True)
class SkippedUpdate:
    """A skipped update. ``causes`` are inf and nan, as far as they were seen; ``first`` the first culprit.

    ``everywhere`` says that every parameter was one, so that the first of them tells nothing.
    """

    step: int
    causes: frozenset[str]
    first: str | None
    everywhere: bool
    origin: str | None
    module: str | None

    @property
    def only_nan(self) -> bool:
        """Whether its gradients held NaN and no inf, and no module was seen where that began on the way back.

        There NaN is made of inf: it is inf less inf, or 0 times inf, one module further.
        """
        began_backward = self.origin == "backward" and self.module is not None
        return self.causes == {"nan"} and not began_backward


@lru_cache(maxsize=8)
def skipped_updates(scaler: ScalerCase) -> Sequence[SkippedUpdate]:
    """Those of the newest rows, in order of step. Many rules ask, and there may be a thousand: made once for a case."""
    rows: dict[int, list[Skip]] = {}
    for skip in scaler.skips:
        rows.setdefault(skip.step, []).append(skip)
    parameters = len(scaler.parameters.names)
    return tuple(_update(step, rows[step], parameters) for step in sorted(rows))


def _update(step: int, rows: Iterable[Skip], parameters: int) -> SkippedUpdate:
    rows = sorted(rows, key=lambda row: (row.rank, row.optimizer))
    causes = {cause for row in rows for cause in row.cause.split("+")} - {"unknown"}
    blamed = [row for row in rows if row.culprits]
    origins = [row for row in rows if row.origin]
    return SkippedUpdate(
        step=step,
        causes=frozenset(causes),
        first=blamed[0].culprits[0].parameter if blamed else None,
        everywhere=bool(blamed) and blamed[0].culprit_parameters >= parameters > 1,
        origin=origins[0].origin if origins else None,
        module=next((row.origin_module for row in origins if row.origin_module), None),
    )
