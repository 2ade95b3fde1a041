"""Reads the run back from its server and describes what is new, so the terminal and the page show the same numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ampmon_server.demo.service import DemoServer
from ampmon_server.model.words import power_of_two


MELTED = 0.001
"""Below this share of subnormal values, underflow is over."""
SKIPS_SHOWN = 3
LOOK_S = 0.5


class Row(NamedTuple):
    """An update as the server stores it. The fraction is None if the gradients were not sampled."""

    step: int
    scale: float
    scale_after: float
    skipped: bool
    subnormal_fraction: float | None


class Story:
    """Tells each thing once: the subnormal share at each new scale, the end of underflow, the first skips."""

    def __init__(self) -> None:
        self._highest = 0.0
        self._melted = False
        self._skips = 0

    def lines_for(self, row: Row, culprit: str | None = None) -> Iterator[str]:
        """Yield the lines that an update adds. ``culprit`` is the parameter that overflowed first, if known."""
        if row.subnormal_fraction is not None and row.scale > self._highest and not row.skipped:
            yield from self._climbed(row.scale, row.subnormal_fraction)
        if row.skipped:
            self._skips += 1
            if self._skips == 1:
                yield from self._first_skip(row, culprit)
            elif self._skips <= SKIPS_SHOWN:
                where = f" in {culprit}" if culprit else ""
                yield f"step {row.step}: overflow{where} at scale {power_of_two(row.scale)}, skipped."
            if self._skips == SKIPS_SHOWN:
                yield (
                    "The ceiling is known. From now on the scale rises only occasionally, as in any training: each "
                    "try costs one step, and all other steps run at the largest scale that works."
                )

    def _climbed(self, scale: float, share: float) -> Iterator[str]:
        first = not self._highest
        self._highest = scale
        if not self._melted:
            yield f"scale {power_of_two(scale)}: {100 * share:.2g} % of gradient values are subnormal."
        if first:
            yield (
                "These values are below 2⁻¹⁴, where fp16 has fewer and fewer bits. Below 2⁻²⁴ they become zero. "
                "Scaling the loss enlarges them: watch the share fall as the scale grows."
            )
        if share < MELTED and not self._melted:
            self._melted = True
            yield "Underflow is almost gone. The scale keeps growing until something overflows ..."

    def _first_skip(self, row: Row, culprit: str | None) -> Iterator[str]:
        where = f" First to overflow: {culprit}." if culprit else ""
        yield f"step {row.step}: first overflow, at scale {power_of_two(row.scale)}. The ceiling is found.{where}"
        after = power_of_two(row.scale_after)
        yield f"The step was skipped, the weights are unchanged, and the scale backs off to {after}."


class Narrator:
    """Tells the story of one run. Queries at most twice a second, and retries later if the server does not answer."""

    def __init__(self, service: DemoServer, run_id: str, say: Callable[[str], None]) -> None:
        self._service = service
        self._path = f"/runs/{run_id}"
        self._say = say
        self._story = Story()
        self._next_step = 0
        self._next_look = 0.0

    def look(self, *, now: bool = False) -> None:
        """Print what is new, unless it is too early to ask. Blocks for one request, and one more for each new skip."""
        if not now and time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_S
        columns = self._service.ask(f"{self._path}/updates?start={self._next_step}&limit=10000")
        rows = zip(*(columns[name] for name in Row._fields), strict=True) if columns else ()
        for row in map(Row._make, rows):
            self._next_step = row.step + 1
            for words in self._story.lines_for(row, self._culprit(row)):
                self._say(words)

    def _culprit(self, row: Row) -> str | None:
        if not row.skipped:
            return None
        ledger: dict[str, Any] = self._service.ask(f"{self._path}/skips?limit=20") or {"skips": []}
        for skip in ledger["skips"]:
            if skip["step"] == row.step and skip["culprits"]:
                return str(skip["culprits"][0]["parameter"])
        return None
