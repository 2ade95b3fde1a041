"""Builds the notices that a reader must see before trusting a run's page or report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ampmon.wire import Finding
from ampmon_server.model.words import count, plural


NO_UPDATE = "No steps recorded."
NO_PROBLEM = "No problems found."
NAMED = 5
"""At most this many parameters of a finding are named."""
STOP = "Stop this run: it cannot recover."


def notices_of(run: dict[str, Any], gaps_found: bool, failed: Sequence[str]) -> list[str]:
    """Return the run's notices.

    ``gaps_found`` means that a finding already names the missing data. ``failed`` are rules that raised an error.
    """
    gaps = [] if gaps_found else list(_gaps(run))
    return [*failed_of(failed), *gaps, *_others(run)]


def answer_of(worst_first: Sequence[Finding], updates: int) -> str:
    """Return the verdict in one line."""
    worst = next(iter(worst_first), None)
    if worst is not None and worst.severity != "notice":
        return worst.title
    if not updates:
        return NO_UPDATE
    return f"Healthy · {plural(len(worst_first), 'notice')}" if worst else NO_PROBLEM


def keys_of(findings: Sequence[Finding]) -> list[str]:
    """Return keys that stay while the numbers change. Several findings may share a rule."""
    seen: Counter[str] = Counter()
    keys = []
    for each in findings:
        of = f"{each.rule} {each.scaler}"
        seen[of] += 1
        keys.append(f"{of} {seen[of]}")
    return keys


def where_of(finding: Finding, several: bool) -> str:
    """Name a finding's parameters, and its scaler if the run has ``several``, with names in backticks."""
    whose = f"Scaler `{finding.scaler}`" if several and finding.scaler else ""
    if not finding.parameters:
        return whose
    named = ", ".join(f"`{name}`" for name in finding.parameters[:NAMED])
    rest = len(finding.parameters) - NAMED
    more = f" and {plural(rest, 'more parameter')}" if rest > 0 else ""
    return f"{whose} · in {named}{more}" if whose else f"In {named}{more}"


def failed_of(rules: Sequence[str]) -> Iterator[str]:
    """Yield one notice if any ``rules`` failed, else nothing."""
    if rules:
        yield (
            f"Findings may be missing: {plural(len(rules), 'rule')} could not judge this run "
            f"({', '.join(rules)})."
        )


def _gaps(run: dict[str, Any]) -> Iterator[str]:
    lost, dropped, rivals = run["lost_records"], run["dropped"], run["rivals"]
    if lost > 0:
        yield (
            f"{plural(lost, 'record')} of {count(run['records'] + lost)} missing: the training process numbered them, "
            "but they never arrived. Charts and counts leave them out. Records still on the disk of its machine are "
            "sent when ampmon next runs there."
            + (" Records dropped there are missing too." if dropped > 0 else "")
        )
    if dropped > 0:
        yield (
            f"{plural(dropped, 'record')} dropped on the training machine: its disk was full, or unsent records had "
            "reached their size limit. Free some space there, set AMPMON_DIR to another disk, or raise "
            "AMPMON_SPOOL_BYTES."
        )
    if rivals > 0:
        yield (
            f"{plural(rivals, 'process went', 'processes went')} on training as a rank of this run after a later "
            "start of the same rank. Both are stored; where both have a step, the later start's is shown. If they are "
            "separate trainings, give each its own run: unset AMPMON_RUN_ID, or pass another run_id to ampmon.init(). "
            "If the older process is left over, end it."
        )


def _others(run: dict[str, Any]) -> Iterator[str]:
    if run["thinned"] > 0:
        yield (
            f"Samples of {plural(run['thinned'], 'step')} were dropped on the training machine, because unsent "
            "records had nearly reached their size limit. Scale and skips are complete; gradient charts have fewer "
            "samples."
        )
    if run["loss_window_ms"] is not None and run["status"] != "finished":
        why = f", because {run['loss_window_why']}" if run["loss_window_why"] else ""
        crashed = run["status"] == "crashed"
        lost = (
            "the process that was killed may have lost" if crashed else "a killed process may lose"
        )
        yield f"Records pass through memory{why}; {lost} the last {count(run['loss_window_ms'])} ms."
    if run["errors"] > 0:
        yield (
            f"The monitor itself failed {plural(run['errors'], 'time')}; training was not affected. See the run's "
            "events for details."
        )
    if run["disabled"]:
        yield (
            "The scaler is disabled, as it is for bf16 and on machines without a GPU: it scales nothing and skips "
            "nothing."
        )
