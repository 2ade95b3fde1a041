"""What a policy makes of a run, in numbers and in words, and what the findings of the run recommend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ampmon.wire import Finding
from ampmon_server.analysis.policy.scalers import Setting
from ampmon_server.model.series import Floats, Ints
from ampmon_server.model.words import count, percent, plural


BAND_SHARE, BAND_LEAST = 0.3, 3
"""A band that is wider than this share of the expected skips and than this many skips is inconclusive."""

LESS = 0.9
"""A setting that leaves at least this part of the skips, zeros and subnormal elements gains hardly anything."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of all elements of the parameters on fp16's grid, with its bounds."""

    low: float
    expected: float
    high: float


@dataclass(frozen=True, slots=True)
class Lost:
    """What fp16 does not hold (``zero``), or not in full (``subnormal``)."""

    zero: Share
    subnormal: Share


@dataclass(frozen=True, slots=True)
class Skips:
    """How many updates are skipped, between ``low`` and ``high``. ``known`` says whether that band is narrow."""

    low: int
    expected: float
    high: int

    @property
    def known(self) -> bool:
        return self.high - self.low <= max(BAND_LEAST, BAND_SHARE * self.expected)


@dataclass(frozen=True, slots=True)
class Spent:
    """The mean number of updates at a scale, which need not be a power of two."""

    scale: float
    updates: float


@dataclass(frozen=True, slots=True)
class Path:
    """log2 of the scale at ``steps`` [p]: expected, and its bounds, [p] each. NaN once the training has ended."""

    steps: Ints
    low: Floats
    expected: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class Simulation:
    """A run under ``setting``. ``updates`` counts the replayed updates.

    ``lost`` is of all their elements, None if the run was not sampled. ``ended`` says why training ends early in most
    replays, None if it does not.
    """

    setting: Setting
    updates: int
    skips: Skips
    scales: tuple[Spent, ...]
    lost: Lost | None
    ended: str | None


def has_no_gain(was: Simulation, would: Simulation) -> bool:
    """Whether a setting hardly reduces any of: skips, subnormal elements, zeros."""
    before, after = [was.skips.expected], [would.skips.expected]
    if was.lost is not None and would.lost is not None:
        before += [was.lost.subnormal.expected, was.lost.zero.expected]
        after += [would.lost.subnormal.expected, would.lost.zero.expected]
    return all(now >= LESS * then for then, now in zip(before, after, strict=True))


def sentence(was: Simulation, would: Simulation) -> str:
    """Compare a simulation with the recorded run. A wide band is conclusive if the recorded skips are outside it.

    The run's own setting has other skips if the setting changed during training.
    """
    if would.ended is not None:
        return f"Training would have ended: {would.ended}."
    if was.setting == would.setting and would.skips.expected == was.skips.expected:
        return f"{plural(was.skips.low, 'skip')} in {plural(was.updates, 'step')}, as recorded; {_lost(was)}."
    skips, recorded = would.skips, was.skips.low
    lost = "" if was.lost is None else f"; {_lost(would)}"
    if lost and _lost(would) != _lost(was):
        lost += f" instead of {_lost(was)}"
    if skips.low == skips.high:
        exactly = plural(skips.low, "skip") if skips.low else "No skips"
        return f"{exactly} expected instead of {count(recorded)}{lost}."
    instead = f"{count(skips.low)} to {count(skips.high)} skips instead of {count(recorded)}"
    if skips.known:
        expected = round(skips.expected)
        about = f"About {plural(expected, 'skip')}" if expected else "Few or no skips"
        band = f"({count(skips.low)} to {count(skips.high)})"
        return f"{about} {band} instead of {count(recorded)}{lost}."
    if skips.low <= recorded <= skips.high:
        # Which scales the run would have had depends on these skips, and the shares on the scales.
        return f"Inconclusive, because there is too little data at these scales: {instead}."
    return f"{instead}{lost}."


def _lost(of: Simulation) -> str:
    if of.lost is None:
        return "shares of the gradient unknown"
    return f"{percent(of.lost.subnormal.expected)} subnormal, {percent(of.lost.zero.expected)} zero"


@dataclass(frozen=True, slots=True)
class Recommended:
    """The recommended ``code``, empty if there is none. ``setting`` is what it sets for one scaler."""

    code: str = ""
    setting: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, findings: Iterable[Finding], scaler: str) -> Recommended:
        """Take the first fix of a diagnosis that is no alternative. `setting` is empty if it is of another scaler."""
        for each in findings:
            if each.fix and not each.second:
                return cls(each.fix, each.setting if each.scaler == scaler else {})
        return cls()

    def standing(self, *, same: bool) -> str:
        """Describe a choice relative to the recommendation: the ``same``, or an alternative and why."""
        if same:
            return "Recommended: the findings show the code."
        if not self.code:
            return "Alternative: no finding recommends a change."
        return "Alternative: the findings recommend another change, which fixes their cause."
