"""The soak in words: a line of progress, and the committed result."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from benchmarks import machine, report
from campaigns.soak.campaign import KILLS, Campaign


TITLE = "Killed at random: what is lost and what is doubled"
ABOUT = """\
Real trainings (fp16 on the CPU, with overflows, skips, samples and scalars; several attempts of a run, most of which do
some steps again), the senders that they start, and `ampmon serve` are killed with SIGKILL at random instants, two
trainings at a time for each server; a proxy between sender and server loses acknowledgements, repeats, delays and cuts
requests. Each training tells, in a file of its own, what it had recorded once the call had returned. When all has come
to rest, each of these records must be in the database once, with the values that torch had, and nothing else; the
counts of each run, the end and the first step of each attempt must be right; `ampmon db verify` must find nothing, and
no spool be left.

A record whose call had not returned when its training was killed may be there or not: those that are there are *in
flight*.
"""


def line(campaign: Campaign, seconds: float, done_before: int) -> str:
    """A line of progress after ``seconds``, before which each number was at least ``done_before``."""
    tally, target = campaign.so_far(), campaign.settings.target
    count = tally.count
    rate = (tally.fewest() - done_before) / max(seconds, 1.0)
    left = f"{(target - tally.fewest()) / rate / 60:.0f} min left" if rate > 0 else "begins"
    return (
        f"kills of trainer {tally.trainer}, sender {tally.sender}, server {tally.server}; lost acks {tally.lost_acks}; "
        f"of {target} each; {count.reported} records: {count.lost} lost, {count.doubled} doubled, "
        f"{len(count.problems)} problems; {left}"
    )


def write(campaign: Campaign) -> str:
    """Return the result as Markdown. Also write that of a whole soak beside the benchmarks' results."""
    figures = _figures(campaign)
    text = f"# {TITLE}\n\n{_measured(figures)}\n\n{ABOUT}\n{_table(figures)}"
    problems = campaign.total().count.problems
    if problems:
        text += "\nWrong:\n\n" + "".join(f"- {each}\n" for each in problems)
    if campaign.complete() and campaign.settings.target >= KILLS:
        report.write(report.RESULTS / f"{machine.slug()}-soak", text, figures)
    return text


def _figures(campaign: Campaign) -> dict[str, Any]:
    torch.set_num_threads(1)  # as in the trainings
    engines = sorted({each.engine for each in campaign.done}, reverse=True)
    return {
        "command": "make soak",
        "machine": machine.describe(),
        "commits": sorted({each.commit for each in campaign.done}),
        "seed": campaign.settings.seed,
        "seconds": round(campaign.seconds()),
        "at_once": campaign.settings.at_once,
        "engines": {engine: asdict(campaign.total(engine)) for engine in engines},
        "all": asdict(campaign.total()),
    }


def _measured(figures: dict[str, Any]) -> str:
    commits = ", ".join(figures["commits"])
    return (
        f"Counted by `{figures['command']}`, seed {figures['seed']}, in {figures['seconds'] / 60:.0f} minutes, "
        f"{figures['at_once']} rounds at once, at commit {commits}, on: {report.machine_of(figures)}."
    )


_ROWS = {
    "rounds": "rounds",
    "runs": "runs",
    "trainings": "trainings",
    "trainer": "kills of a trainer",
    "sender": "kills of a sender at work",
    "sender_before": "kills of a sender while it started",
    "server": "kills of the server",
    "lost_acks": "acknowledgements lost",
    "repeated": "requests doubled",
    "cut": "requests cut off, reset, or without a server",
    "reported": "records whose call had returned",
    "lost": "**lost**",
    "doubled": "**doubled**",
    "lost_from_memory": "lost from memory while the disk was slow",
    "in_flight": "in flight, and stored",
    "problems": "anything else wrong",
}


def _table(figures: dict[str, Any]) -> str:
    columns = {"all": figures["all"], **figures["engines"]}
    rows = [
        {"": words, **{name: _cell(column, key) for name, column in columns.items()}}
        for key, words in _ROWS.items()
    ]
    return report.table(rows) + "\n"


def _cell(tally: dict[str, Any], key: str) -> str:
    value = tally.get(key, tally["count"].get(key))
    return str(len(value) if isinstance(value, list) else value)
