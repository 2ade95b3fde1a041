"""The rows of the heatmap of parameters: each parameter, or the worst of each part of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ampmon_server.charts.parts.source import Level
from ampmon_server.model.names import block_of, module_of
from ampmon_server.model.series import Ints


ROWS_MAX = 300
"""The most rows a reader can tell apart. With more, parameters share a row, unless the reader chose a level."""

LEVELS: Mapping[Level, tuple[str, Callable[[str], str]]] = {
    "parameter": ("each parameter", lambda name: name),
    "module": ("the worst of each module", module_of),
    "block": ("the worst of each block", block_of),
}
"""How finely rows split the parameters, the finest first. Each level has its words and a function from name to row."""


@dataclass(frozen=True, slots=True)
class ParameterRows:
    """r rows with ``names`` [r], and the ``parameters`` [p] in them, by place. ``row`` [p] is the row of each.

    ``parameters`` are in the order of their rows. ``offered`` holds the levels that differ, with their numbers of rows.
    """

    level: Level
    names: tuple[str, ...]
    parameters: Ints
    row: Ints
    offered: Mapping[Level, int]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def merged(self) -> bool:
        return len(self.parameters) > len(self)

    def worst(self, values: npt.NDArray[Any], least: bool) -> npt.NDArray[Any]:
        """Reduce values [c, n] by parameter to the least or greatest of each row, [c, r]. NaN only if all are."""
        held = values[:, self.parameters]
        if not self.merged:
            return held
        starts = np.searchsorted(self.row, np.arange(len(self)))
        return (np.fmin if least else np.fmax).reduceat(held, starts, axis=1)

    def only(self, kept: Ints) -> ParameterRows:
        """Return only the rows at the places ``kept``, in order."""
        place = np.full(len(self), -1)
        place[kept] = np.arange(len(kept))
        row = place[self.row]
        names = tuple(self.names[each] for each in kept.tolist())
        return ParameterRows(
            self.level, names, self.parameters[row >= 0], row[row >= 0], self.offered
        )

    def opens(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """Return what a click on each row selects and its value: its one parameter, or a search for several.

        ``names`` [n] are those of all parameters.
        """
        starts = np.searchsorted(self.row, np.arange(len(self) + 1)).tolist()
        return [
            ("search", f"{name}.*")
            if starts[row + 1] - starts[row] > 1
            else ("parameter", names[self.parameters[starts[row]]])
            for row, name in enumerate(self.names)
        ]


def rows_of(names: Sequence[str], looked: Ints, level: Level | None) -> ParameterRows:
    """Return the rows of the parameters with sampled elements (``looked`` [n]), in the order of the model.

    If ``level`` is not offered, use the finest level with at most `ROWS_MAX` rows, else the coarsest.
    """
    places = np.flatnonzero(looked)
    each = {
        name: [part(names[place]) for place in places.tolist()]
        for name, (_, part) in LEVELS.items()
    }
    numbers = {name: len(dict.fromkeys(keys)) for name, keys in each.items()}
    offered: dict[Level, int] = {}
    for name, number in numbers.items():
        if number not in offered.values():
            offered[name] = number
    fitting = (name for name, number in offered.items() if number <= ROWS_MAX)
    chosen = level if level in offered else next(fitting, [*offered][-1])
    keys = each[chosen]
    at = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    row = np.array([at[key] for key in keys], np.int64)
    order = np.argsort(row, kind="stable")
    return ParameterRows(chosen, tuple(at), places[order], row[order], offered)
