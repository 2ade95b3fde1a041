"""Chooses the one recommendation of a run: the fix of the first finding that has one, unless a replay refutes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from ampmon.wire import Finding
from ampmon_server.analysis.policy.history import History
from ampmon_server.analysis.policy.scalers import changed
from ampmon_server.analysis.policy.simulate import Simulator
from ampmon_server.analysis.policy.simulation import has_no_gain, sentence
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.thresholds import RANKS
from ampmon_server.model.words import count


REPLAYED = " Result of a replay of the newest {updates} steps with this setting: {sentence}"
REFUTED = (
    "Alternative, because a replay of the newest {updates} steps with this setting gains nothing: "
)
BEHIND = (
    "Alternative, because the recommended fix is for a finding that {why}: apply that first, then check whether this "
    "finding remains."
)
WORSE, NEARER = "is more severe", "is closer to the cause"


def recommend(findings: Sequence[Finding], scalers: Iterable[ScalerCase]) -> Iterator[Finding]:
    """Yield the findings with the result of a replay. Every fix but one says why it is ``second``.

    ``findings`` must be sorted, the worst first. If several have the same fix, only the first keeps it.
    """
    by_name = {scaler.name: scaler for scaler in scalers}
    first: Finding | None = None
    said: set[str] = set()
    for finding in findings:
        if not finding.fix:
            yield finding
        elif finding.fix in said:
            yield msgspec.structs.replace(finding, fix="", setting={})
        elif first is not None:
            yield msgspec.structs.replace(finding, second=_behind(first, finding))
        else:
            tried = _tried(finding, by_name)
            first = None if tried.second else tried
            yield tried
        said.add(finding.fix)


def _behind(first: Finding, finding: Finding) -> str:
    worse = RANKS[first.severity] < RANKS[finding.severity]
    return BEHIND.format(why=WORSE if worse else NEARER)


def _tried(finding: Finding, scalers: Mapping[str, ScalerCase]) -> Finding:
    """The finding with the result of replaying its setting, if it has one that can be replayed."""
    scaler = scalers.get(finding.scaler)
    history = History.of_case(scaler) if finding.setting and scaler is not None else None
    if history is None:
        return finding
    if "init_scale" in finding.setting:  # otherwise the replay begins at the scale in force
        history = replace(history, updates=history.replayed)
    try:
        setting = changed("torch", history.policy, **finding.setting)
    except ValueError:  # not replayable, such as an endless interval
        return msgspec.structs.replace(finding, setting={})
    simulator = Simulator(history)
    was, would = simulator.recorded(), simulator.run(setting)
    if setting == was.setting:
        return finding
    updates, comparison = count(history.replayed), sentence(was, would)
    if would.skips.known and has_no_gain(was, would):
        return msgspec.structs.replace(finding, second=REFUTED.format(updates=updates) + comparison)
    words = finding.explanation + REPLAYED.format(updates=updates, sentence=comparison)
    return msgspec.structs.replace(finding, explanation=words)
