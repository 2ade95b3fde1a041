"""The skip ledger by update: what is known of each skipped one from its rows of all optimizers and ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ampmon_server.model.case import LOST, ScalerCase, Skip


UNSCALED = 1.0
"""At this scale and below, no gradient is made larger."""
_WORST = (LOST, "overflowed", "finite")


class _Sizes:
    """How many parameters could be culprits: no record says which of them are whose.

    Those with a gradient in the samples that have the first culprit too; else all that were ever named. Of an update
    that an optimizer of the ledger's did not skip, those that are left without the most that any skip of that one had,
    if no skip of the others had more. One that never skipped is in no ledger: its parameters count as if they were the
    others'.
    """

    def __init__(self, scaler: ScalerCase) -> None:
        names, cells = scaler.parameters.names, scaler.parameters.cells
        self._places = {name: place for place, name in enumerate(names)}
        self._looked = cells["looked"].reshape(len(cells), len(names)) > 0
        self._in_sample = self._looked.sum(1)
        self._most: dict[str, int] = {}
        for skip in scaler.skips:
            known = self._most.get(skip.optimizer, 0)
            self._most[skip.optimizer] = max(known, skip.culprit_parameters)

    def are_all(self, rows: Sequence[Skip]) -> bool:
        """Whether the culprits of an update on one rank, a row for each optimizer, are all that could be."""
        culprits = sum(row.culprit_parameters for row in rows)
        skipped = {row.optimizer for row in rows}
        absent = sum(most for optimizer, most in self._most.items() if optimizer not in skipped)
        if absent and any(row.culprit_parameters < self._most[row.optimizer] for row in rows):
            return False
        return culprits > 1 and culprits + absent >= self._beside(rows[0].culprits[0].parameter)

    def _beside(self, parameter: str) -> int:
        place = self._places.get(parameter)
        if place is None:
            return len(self._places)
        sampled = self._in_sample[self._looked[:, place]]
        return int(sampled.max(initial=0)) or len(self._places)


@dataclass(frozen=True, slots=True)
class SkippedUpdate:
    """A skipped update. ``causes`` are inf and nan, as far as they were seen; ``first`` the first culprit.

    ``loss`` is the worst state on any rank, ``scale`` the scale in force.
    ``everywhere`` says that every parameter of the optimizers that skipped was one, as far as `_Sizes` knows, so that
    the first of them says nothing.
    """

    step: int
    causes: frozenset[str]
    first: str | None
    everywhere: bool
    origin: str | None
    module: str | None
    loss: str | None
    scale: float

    @property
    def beyond_scale(self) -> bool:
        """Whether no smaller scale would have helped, as far as that is known: the loss was not finite.

        Where nothing is known of the loss, gradients with NaN and no inf show it, if no module was seen where that
        began on the way back. There NaN is made of inf: it is inf less inf, or 0 times inf, one module further. So it
        is where the loss was finite, unless the scale was too small to be to blame.
        """
        if self.loss is not None and self.scale > UNSCALED:
            return self.loss == LOST
        began_backward = self.origin == "backward" and self.module is not None
        return self.loss == LOST or (self.causes == {"nan"} and not began_backward)


@lru_cache(maxsize=8)
def skipped_updates(scaler: ScalerCase) -> Sequence[SkippedUpdate]:
    """Those of the newest rows, in order of step. Many rules ask, and there may be a thousand: made once for a case."""
    rows: dict[int, list[Skip]] = {}
    for skip in scaler.skips:
        rows.setdefault(skip.step, []).append(skip)
    sizes = _Sizes(scaler)
    return tuple(_update(step, rows[step], sizes) for step in sorted(rows))


def _update(step: int, rows: Iterable[Skip], sizes: _Sizes) -> SkippedUpdate:
    rows = sorted(rows, key=lambda row: (row.rank, row.optimizer))
    causes = {cause for row in rows for cause in row.cause.split("+")} - {"unknown"}
    blamed = [row for row in rows if row.culprits]
    loss = min((row.loss for row in rows if row.loss), key=_WORST.index, default=None)
    # A rank whose own loss was finite has its gradients from one whose was not.
    origins = [row for row in rows if row.origin and row.loss == loss]
    return SkippedUpdate(
        step=step,
        causes=frozenset(causes),
        first=blamed[0].culprits[0].parameter if blamed else None,
        everywhere=bool(blamed)
        and sizes.are_all([row for row in blamed if row.rank == blamed[0].rank]),
        origin=origins[0].origin if origins else None,
        module=next((row.origin_module for row in origins if row.origin_module), None),
        loss=loss,
        scale=rows[0].scale or 0.0,
    )
