"""The result of a year in words, with charts that Markdown itself draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import machine, report
from campaigns.year.campaign import (
    KEEP_ROWS_DAYS,
    KEEP_SAMPLES_DAYS,
    Campaign,
    Month,
)
from campaigns.year.population import PEOPLE
from campaigns.year.senders import PROCESSES
from campaigns.year.training import BATCH, LOGGED_EVERY, SAMPLED_EVERY


TITLE = "A year of a team"
ABOUT = f"""\
{PEOPLE} people, each with a token of their own, start trainings in the course of a year: lengths are lognormal, half of
them short and a few of a million updates and more; some crash, some are killed, some go on from a checkpoint, some
skip often or diverge, and some have several ranks. {PROCESSES} processes send what they tell to a real server over
HTTP, in order of time, in batches of up to {BATCH} updates; one in {SAMPLED_EVERY} updates of rank 0 is sampled (148
parameters), and a loss is logged with one in {LOGGED_EVERY}. The server goes by a clock that is set forward as the year
goes on. At the end of each month `ampmon db prune --at-once` takes the rows of runs that ended more than
{KEEP_ROWS_DAYS} days before, and the samples of those that ended more than {KEEP_SAMPLES_DAYS} before, beside the
server. Pages are asked for over HTTP on one connection, with no ETag sent; figures are of the newest, the longest, and
any runs. Judging takes a fixed share of the machine's own time, however fast the year goes: it comes to some runs only.
"""


def write(campaign: Campaign, path: Path | None = None) -> str:
    """Return the result as Markdown. Also write it to ``path``, or beside the benchmarks' results for a whole year."""
    figures = _figures(campaign)
    parts = _measured(figures), ABOUT.strip(), _account(figures), _charts(figures), _tables(figures)
    text = "\n\n".join((f"# {TITLE}", *parts)) + "\n"
    if path is not None or campaign.state.scale == 1:
        report.write(path or report.RESULTS / f"{machine.slug()}-year", text, figures)
    return text


def _figures(campaign: Campaign) -> dict[str, Any]:
    state = campaign.state
    return {
        "command": "make year" + ("" if state.scale == 1 else f' ARGS="--scale {state.scale:g}"'),
        "machine": machine.describe(),
        "scale": state.scale,
        "seed": state.seed,
        "runs": len(campaign.runs),
        "updates": state.updates,
        "seconds_of_ingest": round(sum(month.seconds for month in state.months), 1),
        "seconds_of_pruning": round(sum(month.prune_seconds for month in state.months), 1),
        "server_peak_mb": round(state.peak_mb),
        "account": state.account,
        "months": [_row(month) for month in state.months],
    }


def _row(month: Month) -> dict[str, Any]:
    row: dict[str, Any] = {
        "month": month.month,
        "updates": month.updates,
        "per_s": round(month.updates / month.seconds) if month.seconds else None,
        "prune_seconds": round(month.prune_seconds, 1),
    }
    return {**row, "before": month.before, "after": month.after}


def _measured(figures: dict[str, Any]) -> str:
    return (
        f"Measured by `{figures['command']}`, at a scale of {figures['scale']:g}, seed {figures['seed']}: "
        f"{figures['runs']:,} runs and {figures['updates']:,} updates in {figures['seconds_of_ingest'] / 60:.1f} "
        f"minutes of ingest and {figures['seconds_of_pruning'] / 60:.1f} of pruning, on: {report.machine_of(figures)}."
    )


def _account(figures: dict[str, Any]) -> str:
    found = figures["account"]
    if found is None:
        return "The year is not over."
    words = (
        f"Of {found['sent']:,} updates that were sent, {found['held']:,} are held and {found['thinned']:,} were "
        f"thinned; the totals of {found['runs']:,} runs in the list are "
    )
    if not found["problems"]:
        return (
            f"{words}exact. {found['judged']:,} of them were judged. The server never held more than "
            f"{figures['server_peak_mb']} MB."
        )
    return "\n".join(
        [f"{words}not all as they must be:", "", *(f"- {each}" for each in found["problems"])]
    )


def _looks(figures: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The measurements, each with its time."""
    return [
        (f"month {month['month']}, {when} pruning", month[when])
        for month in figures["months"]
        for when in ("before", "after")
        if month[when]
    ]


def _charts(figures: dict[str, Any]) -> str:
    looked = [month for month in figures["months"] if month["after"]]
    size = _chart(
        "Size of the database in MB, before pruning (bars) and after it (line)",
        looked,
        bar=[month["before"]["database_mb"] for month in looked],
        line=[month["after"]["database_mb"] for month in looked],
    )
    pages = _chart(
        "The list of runs (bars) and a figure of any run (line), 95 % point in ms",
        looked,
        bar=[month["after"]["times"]["list"]["p95_ms"] for month in looked],
        line=[month["after"]["times"]["figures, any run"]["p95_ms"] for month in looked],
    )
    return f"{size}\n\n{pages}"


def _chart(title: str, months: list[dict[str, Any]], **series: list[float]) -> str:
    lines = [
        "```mermaid",
        "xychart-beta",
        f'    title "{title}"',
        f'    x-axis "month" {[month["month"] for month in months]}',
        *(f"    {kind} {values}" for kind, values in series.items()),
        "```",
    ]
    return "\n".join(lines)


def _tables(figures: dict[str, Any]) -> str:
    seen = _looks(figures)
    rows = [
        {
            "when": when,
            **{
                name: look[name]
                for name in ("runs", "database_mb", "server_rss_mb", "server_pss_mb")
            },
        }
        for when, look in seen
    ]
    times = [
        {"page": page}
        | {
            f"{when}: p50 / p95 ms": f"{look['times'][page]['p50_ms']} / {look['times'][page]['p95_ms']}"
            for when, look in seen
        }
        for page in (seen[0][1]["times"] if seen else ())
    ]
    months = [
        {name: month[name] for name in ("month", "updates", "per_s", "prune_seconds")}
        for month in figures["months"]
    ]
    return "\n\n".join(report.table(each) for each in (rows, times, months) if each)
