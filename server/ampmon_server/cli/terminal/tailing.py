"""``ampmon tail``: follows a run, in a redrawn view on a terminal, or as plain lines for logs and pipes."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ampmon_server.cli.exits import CANNOT
from ampmon_server.cli.which import add_run, add_server


if TYPE_CHECKING:
    from ampmon_server.cli.terminal.following import Moment, News, RunFollower
    from ampmon_server.client import ApiClient

LOOK_S = 1.0
REST = 4.0
"""Minimum pause after a look, in multiples of its duration."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--follow",
        action="store_true",
        help="print plain lines, for logs (the default if the output is not a terminal)",
    )
    parser.add_argument(
        "--every",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="seconds between two plain lines while nothing happens (%(default)s)",
    )
    add_server(parser)


def run(arguments: argparse.Namespace) -> int:
    """Follow a run to its end. Return 0, or 2 if it cannot be followed."""
    from ampmon_server.client import ClientError, answering, choose

    try:
        where = arguments.url, arguments.data_dir, arguments.token_file
        with answering(*where, for_long=True) as server:
            run_id = choose(server, arguments.run).run_id
            if arguments.follow or not _draws():
                follow_plainly(server, run_id, arguments.every)
            else:
                from ampmon_server.cli.terminal.live import follow

                follow(server, run_id)
    except ClientError as why:
        print(f"ampmon tail: {why}", file=sys.stderr)
        return CANNOT
    return 0


def _draws() -> bool:
    """Whether the output is a terminal that can redraw lines."""
    from rich.console import Console

    console = Console()
    return console.is_terminal and not console.is_dumb_terminal


def moments(follower: RunFollower, lost: Callable[[str], object]) -> Iterator[Moment]:
    """Yield a run's state about once a second until it ends. Blocks.

    ``lost`` is called with the reason, once for each outage of the server. Raises ClientError if the first look fails,
    or if the server later refuses access to the run.
    """
    from ampmon_server.client import ClientError, RequestRefused

    moment, away = None, False
    while moment is None or not moment.ended:
        began = time.monotonic()
        try:
            moment = follower.look()
        except RequestRefused:
            raise
        except ClientError as why:
            if moment is None:
                raise
            if not away:
                lost(f"{why}; trying again")
            away = True
        else:
            away = False
            yield moment
        if moment is None or not moment.ended:
            time.sleep(max(LOOK_S, REST * (time.monotonic() - began)))


def follow_plainly(server: ApiClient, run_id: str, every_s: float) -> None:
    """Print lines until the run ends: events as they happen, and the state every ``every_s`` seconds."""
    from ampmon_server.cli.terminal.following import News, RunFollower

    due_s, is_first = 0.0, True
    for moment in moments(RunFollower(server, run_id), lost=lambda why: _say(f"! {why}")):
        known = [News(each.title, each.severity) for each in moment.findings] if is_first else []
        is_first = False
        for news in (*known, *moment.news):
            _say(_line(news))
        if moment.ended or time.monotonic() >= due_s:
            _say(state(moment))
            due_s = time.monotonic() + every_s


def _line(news: News) -> str:
    return f"{news.severity}: {news.words}" if news.severity else news.words


def state(moment: Moment) -> str:
    """Format a run's state in one line for programs to read, without spaces inside numbers."""
    from ampmon_server.cli.terminal.numbers import scale_of, skipped_of, value_of
    from ampmon_server.model.words import percent

    run = moment.run
    words = [f"step {'–' if run.last_step is None else run.last_step}"]
    words += [f"scale {scale_of(run.scale, run.scale_kind)}", f"skipped {skipped_of(run)}"]
    if moment.loss is not None:
        words.append(f"loss {value_of(moment.loss)}")
    if run.subnormal_fraction is not None:
        words.append(f"subnormal {percent(run.subnormal_fraction)}")
    return "  ".join([*words, run.status])


def _say(words: str) -> None:
    from ampmon_server.model.words import SPACE

    print(f"{time.strftime('%H:%M:%S')}  {words.replace(SPACE, '')}", flush=True)
