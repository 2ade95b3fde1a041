"""Reconstructs the updates between the lines of a log: as many as it counts, with the skips and growths it names.

A log names only some updates. Skips without a step are spread over the updates between two lines, by their times if the
log has them. Skips on neighbouring lines follow one another. So a step may be off by the number of updates between two
lines, while counts, scales and their order are the log's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from ampmon.wire import UpdateEvent
from ampmon_server.exchange.logs import CannotImport, LogLine, Rules


APART = 10
"""Updates assumed between two skips that are not on neighbouring lines, if the log counts no steps."""
SEEN = 3
"""Growths needed to tell after how many updates the scale grows."""
NEAR = 0.75
UPDATES_MAX = 20_000_000
_LEAST = 2.0**-149


class ReconstructedUpdate(NamedTuple):
    """One update. ``attempt`` counts the starts that the log shows."""

    attempt: int
    step: int
    scale: float
    after: float
    event: UpdateEvent
    skipped: bool
    tracker: int
    time: int | None
    loss: float | None


def reconstruct(marks: Sequence[LogLine], rules: Rules) -> tuple[list[ReconstructedUpdate], int]:
    """Return the updates of a log, by attempt and then by step, and their growth interval.

    Raises CannotImport if the log counts more updates than `UPDATES_MAX`.
    """
    rows = _Laying(rules).all_of(marks)
    return rows, _growth_interval(marks, rows, rules)


class _Laying:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._rows: list[ReconstructedUpdate] = []
        self._attempt = self._step = self._tracker = 0
        self._scale: float | None = None
        self._first: float | None = None
        self._logged = 0
        """The step of the last line that named one, in the log's own count."""
        self._width = 1
        self._time: int | None = None

    def all_of(self, marks: Sequence[LogLine]) -> list[ReconstructedUpdate]:
        pending: list[LogLine] = []
        from_zero = next((each.step for each in marks if each.step is not None), None) == 0
        for mark in marks:
            if self._first is None:
                self._first = mark.scale if mark.before is None else mark.before
                self._scale = self._first
            if mark.is_skip:
                pending.append(mark)
                continue
            self._progress(mark, pending, int(from_zero))
            pending = []
        if pending:
            self._unstepped(pending)
        return self._rows

    def _progress(self, mark: LogLine, pending: Sequence[LogLine], offset: int) -> None:
        done = self._logged + 1 if mark.step is None else mark.step + offset
        # A count that does not rise is of a new start, which began one line's width before.
        if done < self._logged or (done == self._logged and mark.scale is not None):
            self._restart(max(done - self._width, 0))
            self._logged = self._step
        updates = done - self._logged
        if self._step + updates > UPDATES_MAX:
            raise CannotImport(
                f"line {mark.line + 1} counts {done:,} updates: more than {UPDATES_MAX:,}"
            )
        self._logged, self._width = done, max(updates, 1)
        began = len(self._rows)
        skips = [*pending, *self._counted(mark, updates - len(pending), bool(pending))]
        gaps = self._gaps(skips, max(updates - len(skips), 0), mark)
        for skip, gap in zip(skips, gaps, strict=False):
            self._clean(gap, skip.before)
            self._skip(skip.scale, skip.time)
        self._clean(gaps[-1], mark.scale)
        self._date(began, mark)

    def _counted(self, mark: LogLine, updates: int, listed: bool) -> list[LogLine]:
        """Make marks of skips without lines of their own: those a line counts, or those a lower scale implies."""
        scale, after = self._scale, mark.scale
        if listed or scale is None or after is None or updates <= 0 or not scale > 0:
            return []
        fell = round(math.log2(scale / max(after, _LEAST)))
        count = min(max(fell, 0) if mark.skipped is None else mark.skipped, updates)
        falls = min(max(fell, 0), count)
        others = count - falls
        held = count == updates or fell < 0 or after <= self._rules.min_scale
        held = held or others < self._rules.hysteresis
        patience = self._rules.hysteresis
        found = [
            LogLine(place + 1, scale=scale, before=scale)
            if held
            else LogLine(place + 1 + place // patience, scale=2 * scale, before=2 * scale)
            for place in range(others)
        ]
        if not held:
            # Assume that the scale doubled before each group of `patience` skips, and the group's last skip halved it.
            for place in [*range(patience - 1, others, patience), others - 1]:
                found[place] = found[place]._replace(scale=scale)
        for _ in range(falls):
            lower = after if len(found) == count - 1 else scale * 2.0 ** -max(fell // falls, 1)
            near = len(found) == others and patience > 1
            line = len(found) + 1 if near else 2 * count + 2 * len(found)
            found.append(LogLine(line, scale=lower, before=scale))
            scale = lower
        return found

    def _gaps(self, skips: Sequence[LogLine], free: int, mark: LogLine) -> list[int]:
        """How many updates succeeded before each skip, and after the last one."""
        times = [self._time, *(each.time for each in skips), mark.time]
        weights: list[float]
        if all(each is not None for each in times):
            known = [each or 0 for each in times]
            weights = [max(b - a, 0) for a, b in pairwise(known)]
        else:
            lines = [each.line for each in skips]
            near = [a and b == a + 1 for a, b in pairwise(lines)]
            weights = [1.0, *(0.0 if each else 1.0 for each in near), 1.0][: len(skips) + 1]
        total = sum(weights) or 1.0
        ends = [round(free * sum(weights[: place + 1]) / total) for place in range(len(weights))]
        ends[-1] = free
        return [b - a for a, b in pairwise([0, *ends])]

    def _unstepped(self, skips: Sequence[LogLine]) -> None:
        """Add skips after which the log counts no step. Growth of the scale between them shows how many updates ran."""
        before = None
        began = len(self._rows)
        for skip in skips:
            near = before is not None and skip.line == before.line + 1
            grown = self._octaves(skip.before)
            gap = grown * self._rules.growth_interval if grown > 0 else 0 if near else APART
            if self._logged:  # the log names a step each `_width` updates
                gap = min(gap, self._width)
            self._clean(gap if before is not None or self._rows else 0, skip.before)
            self._skip(skip.scale, skip.time)
            before = skip
        self._date(began, skips[-1])

    def _clean(self, updates: int, to: float | None) -> None:
        """Add updates without skips, over which the scale moves to ``to``."""
        grown = self._octaves(to)
        # The scale cannot grow back to the first one so soon: the training was started again.
        if grown >= 2 and to == self._first and updates < grown * self._rules.growth_interval:
            self._restart(self._step)
            self._scale, grown = to, 0
        growths = {updates * (each + 1) // grown - 1 for each in range(grown)} if grown > 0 else ()
        for place in range(updates):
            scale = self._scale or 0.0
            grow = place in growths and grown <= updates
            self._tracker = 0 if grow else self._tracker + 1
            self._put(scale * 2 if grow else scale, "grow" if grow else "steady", False, None)
        self._scale = self._scale if to is None else to

    def _octaves(self, to: float | None) -> int:
        scale = self._scale
        if to is None or scale is None or min(to, scale) <= 0:
            return 0
        return round(math.log2(to) - math.log2(scale))

    def _skip(self, after: float | None, time: int | None) -> None:
        scale = self._scale or 0.0
        left = scale if after is None else after
        event: UpdateEvent = "backoff" if left < scale else "steady"
        self._tracker = 0
        self._put(left, event if left > 2.0**-128 else "dead", True, time)

    def _put(self, after: float, event: UpdateEvent, skipped: bool, time: int | None) -> None:
        place = self._attempt, self._step, self._scale or 0.0
        self._rows.append(
            ReconstructedUpdate(*place, after, event, skipped, self._tracker, time, None)
        )
        self._scale = after
        self._step += 1

    def _restart(self, step: int) -> None:
        if self._rows:
            self._attempt += 1
        self._step, self._tracker = step, 0

    def _date(self, began: int, mark: LogLine) -> None:
        """Set times of the updates since the last line, spread evenly up to this line's. The last one gets its loss."""
        rows = self._rows[began:]
        if rows and mark.time is not None:
            start = mark.time if self._time is None else min(self._time, mark.time)
            for place, row in enumerate(rows):
                at = start + (mark.time - start) * (place + 1) // len(rows)
                self._rows[began + place] = row._replace(time=at)
        if rows:
            self._rows[-1] = self._rows[-1]._replace(loss=mark.loss)
        self._time = mark.time or self._time


def _growth_interval(
    marks: Sequence[LogLine], rows: Sequence[ReconstructedUpdate], rules: Rules
) -> int:
    """The interval that the log states, or a shorter one if the scale grew faster. 0 if it cannot be known.

    Between two printed scales the scale may have grown and backed off. Only a print at each update would show that.
    """
    seen = sorted(_intervals(rows))
    if rules.is_stated:  # a growth between two lines may be placed a little too early
        near = [each for each in seen if each >= NEAR * rules.growth_interval]
        return min([rules.growth_interval, *near])
    if len(seen) >= SEEN:
        return min(seen[len(seen) // 2], rules.growth_interval)
    apart = any(each.is_skip or each.skipped is not None for each in marks)
    return rules.growth_interval if apart or 2 * len(marks) > len(rows) else 0


def _intervals(rows: Sequence[ReconstructedUpdate]) -> Iterator[int]:
    """The updates from each growth or skip to the next growth."""
    clean: int | None = None
    for row in rows:
        if row.event == "grow" and clean is not None:
            yield clean + 1
        if row.event == "grow" or row.skipped:
            clean = 0
        elif clean is not None:
            clean += 1
