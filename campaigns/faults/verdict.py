"""The checks after a cell, whatever failed in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ampmon_server.settings import Settings
from campaigns.faults import account
from campaigns.faults.account import TELLING, Account
from campaigns.faults.parts import Part


@dataclass
class Verdict:
    """Collects descriptions of what is wrong."""

    wrong: list[str] = field(default_factory=list)

    def expect(self, holds: object, otherwise: str) -> None:
        if not holds:
            self.wrong.append(otherwise)

    def same(self, what: str, found: Any, expected: Any) -> None:
        if found != expected:
            self.wrong.append(f"{what}: {_apart(found, expected)}")

    # -- training -----------------------------------------------------------------------------------------------------

    def trained(self, part: Part, reference: Mapping[str, Any]) -> None:
        """Losses, scales, weights and exit code match a training without ampmon; at most one update hung."""
        if part.killed:
            return
        self.same("exit code", part.status, 0)
        (trained,) = part.all_reported("trained") or [None]
        self.same("training", trained, reference)
        stalled = _stalled(part)
        self.expect(len(stalled) <= 1, f"training waited for calls that hung in updates {stalled}")

    def recorded(self, part: Part, found: Account, whole: Account, log: str) -> None:
        """The spool holds only what happened, and accounts for what it lacks."""
        for name in ("updates", "scalars"):
            false = dict(getattr(found, name).items() - getattr(whole, name).items())
            self.expect(not false, f"false {name}: {false}")
        self.expect(found.skips <= whole.skips, f"false skips: {found.skips - whole.skips}")
        strange = set(found.events) - set(whole.events) - TELLING
        self.expect(not strange, f"strange events: {strange}")
        for stream, seqs in found.seqs.items():
            self.expect(len(seqs) == len(set(seqs)), f"seqs of {stream!r} are doubled")
        if part.killed:
            gone = set(part.all_reported("step")) - set(found.updates)
            self.expect(not gone or any(part.all_reported("in_memory")), f"updates {gone} are gone")
            return
        missing = _records(whole) - _records(found)
        declared = max(found.lost, found.dropped)
        ended = "finish" in found.events
        self.expect(
            missing <= declared or (not ended and "ampmon:" in log),
            f"{missing} records are missing, {declared} are declared",
        )

    # -- the database -------------------------------------------------------------------------------------------------

    def stored(
        self,
        settings: Settings,
        attempt_id: UUID,
        spooled: Account,
        acked: Collection[tuple[str, int]],
    ) -> None:
        """The database holds what the spool held, once, including everything acknowledged."""
        database = settings.server_directory / "ampmon.db"
        found, run = account.of_database(database, attempt_id)
        held = {(stream, seq) for stream, seqs in found.seqs.items() for seq in seqs}
        self.expect(set(acked) <= held, f"acknowledged, not stored: {set(acked) - held}")
        for name in ("updates", "skips", "samples", "events", "scalars"):
            self.same(f"stored {name}", getattr(found, name), getattr(spooled, name))
        for stream in spooled.seqs.keys() | found.seqs.keys():
            self.same(
                f"ledger of {stream!r}",
                sorted(found.seqs.get(stream, ())),
                sorted(spooled.seqs.get(stream, ())),
            )
        if run:
            self.same("run", _of_run(run), _expected_of_run(spooled))


def _stalled(part: Part) -> list[int]:
    """The updates in which training waited for hung calls. One append can make two calls, in a new segment."""
    stalled: list[int] = []
    updates = -1  # while the scaler is created
    for report in part.reports:
        if "trained" in report:
            break
        if "began" in report or "step" in report:
            updates += 1
        if "stalled" in report and updates >= 0:
            stalled += [updates] if updates not in stalled else []
    return stalled


def _records(of: Account) -> int:
    return len(of.updates) + len({step for step, _ in of.scalars}) + of.events["init"] + of.finished


def _of_run(row: Mapping[str, Any]) -> dict[str, object]:
    names = ("state", "records", "lost", "updates", "skipped", "sampled", "dropped")
    return {name: row[name] for name in names}


def _expected_of_run(spooled: Account) -> dict[str, object]:
    return {
        "state": "finished" if spooled.finished else "crashed",
        "records": sum(map(len, spooled.seqs.values())),
        "lost": spooled.lost,
        "updates": len(spooled.updates),
        "skipped": len(spooled.skips),
        "sampled": len(spooled.samples),
        "dropped": spooled.dropped,
    }


def _apart(found: Any, expected: Any) -> str:
    if isinstance(found, dict) and isinstance(expected, dict):
        keys = [key for key in {*found, *expected} if found.get(key) != expected.get(key)]
        return ", ".join(
            f"{key} is {found.get(key)!r}, not {expected.get(key)!r}" for key in keys[:3]
        )
    return f"{str(found)[:300]}, not {str(expected)[:300]}"
