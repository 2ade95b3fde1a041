"""Merges the skip ledger by update, from the rows of all optimizers and ranks, and finds where overflows began."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ampmon_server.model.aggregates.parameters import wide
from ampmon_server.model.case import LOST, ScalerCase, Skip


UNSCALED = 1.0
"""At this scale and below, scaling makes no gradient larger."""
_WORST = (LOST, "overflowed", "finite")


class _Sizes:
    """How many parameters could be culprits. No record says which optimizer has which parameters.

    Candidates are the parameters with a gradient in samples that contain the first culprit, else all known ones. If an
    optimizer in the ledger did not skip the update, the most culprits of any of its skips count as its parameters. This
    holds only if the other optimizers had as many culprits as in any of their skips. An optimizer that never skipped is
    in no ledger, so its parameters count as the others'.
    """

    def __init__(self, scaler: ScalerCase) -> None:
        names, cells = scaler.parameters.names, scaler.parameters.cells
        self._places = {name: place for place, name in enumerate(names)}
        self._looked = wide(cells, "looked") > 0
        self._in_sample = self._looked.sum(1)
        self._most: dict[str, int] = {}
        for skip in scaler.skips:
            known = self._most.get(skip.optimizer, 0)
            self._most[skip.optimizer] = max(known, skip.culprit_parameters)

    def are_all(self, rows: Sequence[Skip]) -> bool:
        """Whether the culprits of an update on one rank, a row per optimizer, are all possible ones."""
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
    """A skipped update. ``causes`` are inf and nan, as far as they were seen. ``first`` is the first culprit.

    ``loss`` is the worst state on any rank. ``scale`` is the scale in force; if it was not finite, infinity.
    ``everywhere`` says that every parameter of the optimizers that skipped was a culprit, as far as `_Sizes` can tell.
    Then ``first`` means nothing.
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
        """Whether no smaller scale would have helped, as far as is known: the loss was not finite.

        If the loss is unknown, gradients with NaN and no inf show it, unless a module is known where the overflow began
        backward. There inf becomes NaN one module further, as inf minus inf or 0 times inf. With a finite loss,
        NaN counts as made of inf too, unless the scale was too small to cause an overflow.
        """
        if self.loss is not None and self.scale > UNSCALED:
            return self.loss == LOST
        began_backward = self.origin == "backward" and self.module is not None
        return self.loss == LOST or (self.causes == {"nan"} and not began_backward)


@lru_cache(maxsize=8)
def skipped_updates(scaler: ScalerCase) -> Sequence[SkippedUpdate]:
    """Return the skipped updates of the newest rows, in order of step. Cached, because many rules need them."""
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
    # A rank whose own loss was finite got its gradients from a rank whose loss was not.
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
        scale=math.inf if rows[0].scale is None else rows[0].scale,
    )


def of_origin(
    scaler: ScalerCase, origin: str, since: int = 0
) -> tuple[Sequence[SkippedUpdate], str | None]:
    """Return the skipped updates from step ``since`` on that began at ``origin``, and their most frequent module.

    An update of unknown origin whose loss was not finite counts for the most frequent origin of such updates.
    """
    since = max(since, int(scaler.recent["first"][0]))
    newest = [each for each in skipped_updates(scaler) if each.step >= since]
    lost = Counter(each.origin for each in newest if each.loss == LOST and each.origin)
    unseen = None if lost and lost.most_common(1)[0][0] == origin else origin
    found = [
        each
        for each in newest
        if each.origin == origin or (each.loss == LOST and each.origin == unseen)
    ]
    modules = Counter(each.module for each in found if each.module)
    return found, modules.most_common(1)[0][0] if modules else None
