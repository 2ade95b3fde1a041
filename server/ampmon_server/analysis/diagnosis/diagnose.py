"""Runs every rule, removes symptoms of other findings, sorts the worst first, and recommends one fix.

That is the fix of the first finding that has one, unless a replay refutes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from ampmon.system.plain import plain_finding
from ampmon.wire import Finding, Severity
from ampmon_server.analysis.diagnosis.explaining import explained
from ampmon_server.analysis.diagnosis.rules import RULES
from ampmon_server.analysis.diagnosis.underflow import measured
from ampmon_server.analysis.policy.history import History
from ampmon_server.analysis.policy.scalers import changed
from ampmon_server.analysis.policy.simulate import Simulator
from ampmon_server.analysis.policy.simulation import has_no_gain, sentence
from ampmon_server.model.case import Case, ScalerCase
from ampmon_server.model.thresholds import RANKS, Thresholds
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


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A run's findings, the worst first, and none if it is healthy. ``failed`` are the rules that raised, by name."""

    findings: tuple[Finding, ...]
    failed: Mapping[str, Exception] = field(default_factory=dict)

    @property
    def severity(self) -> Severity | None:
        """The severity of the worst finding, None if there is none."""
        return self.findings[0].severity if self.findings else None

    @property
    def verdict(self) -> str:
        """The title of the worst finding, or "healthy"."""
        return self.findings[0].title if self.findings else "healthy"


def diagnose(case: Case, thresholds: Thresholds) -> Diagnosis:
    """Diagnose a run. Findings of equal severity are in the order of `rules.RULES`.

    None stops a start that has not made an update, because they are about the start before it. An ended run whose rows
    are pruned keeps its findings.
    """
    if case.findings is not None:
        return Diagnosis(case.findings)
    failed: dict[str, Exception] = {}
    causes = explained(list(_found(case, thresholds, failed)))
    # Made plain again, because a measurement adds text that a client sent.
    found = [plain_finding(measured(each, case)) for each in causes]
    found.sort(key=lambda each: RANKS[each.severity])
    try:
        found = list(recommend(found, case.scalers))
    except Exception as error:
        failed["recommending"] = error
    if not case.begun:
        found = [msgspec.structs.replace(each, stop=False) for each in found]
    return Diagnosis(tuple(found), failed)


def _found(case: Case, thresholds: Thresholds, failed: dict[str, Exception]) -> Iterator[Finding]:
    for rule in RULES:
        try:
            yield from map(plain_finding, rule(case, thresholds))
        except Exception as error:  # a failed rule must not hide what others found
            failed[rule.__module__.rpartition(".")[2]] = error


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
            is_worse = RANKS[first.severity] < RANKS[finding.severity]
            second = BEHIND.format(why=WORSE if is_worse else NEARER)
            yield msgspec.structs.replace(finding, second=second)
        else:
            tried = _tried(finding, by_name)
            first = None if tried.second else tried
            yield tried
        said.add(finding.fix)


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
