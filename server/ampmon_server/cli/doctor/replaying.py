"""Prints a run's replays: as recorded, as asked for, and as recommended."""

from __future__ import annotations

import msgspec
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from ampmon.system.plain import plain
from ampmon_server.cli.doctor.printing import Paper
from ampmon_server.client.answers import SettingAnswer, Simulated, SimulationAnswer, SkipsAnswer
from ampmon_server.model.words import count, percent, power_of_two, steps


_SCALES = 3


def show(paper: Paper, simulated: Simulated, *, asked: bool) -> None:
    """Print a row for each policy. ``asked`` says whether the user gave one."""
    was = simulated.recorded
    paper.blank()
    paper.write(Text(_heading(simulated), "bold"), 0)
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    for name in ("", "skips", "subnormal", "most frequent scales"):
        table.add_column(name)
    table.add_row("as recorded", *_cells(was))
    if asked:
        row = simulated.simulated
        table.add_row(_difference(row.policy, was.policy), *_cells(row))
    advised = simulated.recommended
    if advised.code:
        standing = "alternative" if advised.second else "recommended"
        table.add_row(f"{standing}: {_difference(advised.policy, was.policy)}", *_cells(advised))
    paper.table(table)
    paper.write(Text(plain(f"{advised.words} {advised.second}")))
    if advised.second:
        paper.code(advised.code)


def _heading(simulated: Simulated) -> str:
    which = "all" if simulated.whole else "the newest"
    where = steps(simulated.first, simulated.last)
    return plain(f"Replayed: {which} {count(simulated.updates)} updates, {where}")


def _cells(row: SimulationAnswer) -> tuple[str, ...]:
    share = row.subnormal_fraction
    most = sorted(row.scales, key=lambda each: each.updates, reverse=True)[:_SCALES]
    total = sum(each.updates for each in row.scales) or 1.0
    scales = [f"{_power(each.scale)} {percent(each.updates / total)}" for each in most]
    ended = f"; gives up: {row.ended}" if row.ended else ""
    return (
        _band(row.skips),
        "not sampled" if share is None else plain(percent(share)),
        plain(", ".join(scales) + ended),
    )


def _band(skips: SkipsAnswer) -> str:
    if skips.low == skips.high:
        return plain(count(skips.low))
    if not skips.known:
        return plain(f"{count(skips.low)} to {count(skips.high)}: inconclusive")
    return plain(f"{count(round(skips.expected))} ({count(skips.low)} to {count(skips.high)})")


def _power(scale: float) -> str:
    """A scale as its power of two alone."""
    return power_of_two(scale).split(" = ")[-1].split(" ≈ ")[-1]


def _difference(setting: SettingAnswer, was: SettingAnswer) -> str:
    """Describe a policy by its differences from the run's own."""
    own, other = msgspec.structs.asdict(was), msgspec.structs.asdict(setting)
    changed = [
        f"{name}={_power(value) if name == 'init_scale' else f'{value:g}'}"
        for name, value in other.items()
        if name != "name" and value is not None and value != own[name]
    ]
    named = [] if setting.name == was.name else [setting.name]
    return plain(", ".join(named + changed)) or "the same"
