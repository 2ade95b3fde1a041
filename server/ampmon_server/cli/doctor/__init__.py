"""``ampmon doctor``: what is wrong with a run, why, and what to change; its exit code is for CI and schedulers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ampmon.wire import Severity
from ampmon_server.cli.exits import CANNOT
from ampmon_server.cli.which import add_run, add_server


if TYPE_CHECKING:
    from ampmon_server.asking import Asking

CODES: dict[Severity | None, int] = {None: 0, "notice": 10, "warning": 20, "critical": 30}
"""What a run's worst finding makes the exit code, from --fail-on on; else it is 0."""
FRAMEWORKS = ("deepspeed", "megatron", "fairseq", "apex", "prints")
POLICIES = ("torch", "fixed", "megatron", "deepspeed", "fairseq")
REPLAYED = ("policy", "init_scale", "growth_factor", "backoff_factor", "growth_interval")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_run(parser)
    parser.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="diagnose the text log of a run that nobody watched",
    )
    parser.add_argument(
        "--log-of",
        choices=FRAMEWORKS,
        help="the framework that wrote the log (the first whose lines are in it)",
    )
    parser.add_argument("--json", action="store_true", help="print the server's answer as it is")
    parser.add_argument(
        "--fail-on",
        choices=get_args(Severity),
        default="warning",
        help="the least severity whose exit code is not 0 (%(default)s)",
    )
    _add_replay(parser.add_argument_group("what the run would have been under another policy"))
    add_server(parser)


def _add_replay(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--simulate", action="store_true", help="replay the run's updates, and recommend"
    )
    group.add_argument(
        "--policy", choices=POLICIES, help="whose (torch's; what is not given is the run's)"
    )
    group.add_argument("--init-scale", type=float, metavar="SCALE", help="begin there")
    group.add_argument("--growth-factor", type=float, metavar="FACTOR", help="grow by it")
    group.add_argument("--backoff-factor", type=float, metavar="FACTOR", help="fall by it")
    group.add_argument(
        "--growth-interval", type=int, metavar="N", help="grow after N updates without a skip"
    )


def run(arguments: argparse.Namespace) -> int:
    """Diagnose a run and print it: 0, or the code of its worst finding; 2 where there is no answer."""
    from ampmon_server.asking import Unanswered, choose
    from ampmon_server.asking.answers import Diagnosed, Simulated, read
    from ampmon_server.cli.doctor.printing import Paper, waiting
    from ampmon_server.cli.doctor.replaying import show

    try:
        with waiting("asking"), _asked(arguments) as server:
            asked = choose(server, arguments.run)
            body = server.get(f"/runs/{asked.run_id}/diagnosis")
            diagnosed = read(body, Diagnosed)
            if (setting := _setting(arguments)) is not None:
                body = server.get(f"/runs/{asked.run_id}/simulate", setting)
                simulated = read(body, Simulated)
    except (Unanswered, OSError) as why:
        print(f"ampmon doctor: {why}", file=sys.stderr)
        return CANNOT
    if arguments.json:
        print(body.decode())
    else:
        paper = Paper(asked, server.page)
        paper.show(diagnosed)
        if setting is not None:
            show(paper, simulated, asked=bool(setting))
    return exit_code(diagnosed.severity, arguments.fail_on)


@contextmanager
def _asked(arguments: argparse.Namespace) -> Iterator[Asking]:
    """The server that has the run; of a log one that lasts as long as it is asked."""
    from ampmon_server.asking import Unanswered, answering

    if arguments.log is None:
        with answering(arguments.url, arguments.data_dir, arguments.token_file) as server:
            yield server
        return
    from ampmon_server.asking.alone import filled
    from ampmon_server.importing import NoScale, TooLong, log_batches, name_of, read_log, send

    try:
        log = read_log(arguments.log, arguments.log_of)
        batches = list(log_batches(log, name_of(arguments.log), "logs"))
    except (NoScale, TooLong) as why:
        raise Unanswered(str(why)) from None
    print(
        f"{arguments.log}: read as a log of {log.framework}, {len(log.marks):,} lines tell of the scale; "
        "steps between them are estimates",
        file=sys.stderr,
    )
    with filled(lambda url, token: send(url, token, batches)) as server:
        yield server


def _setting(arguments: argparse.Namespace) -> dict[str, str] | None:
    """What is to be replayed as a query, empty for the run's own; None where nothing is."""
    given = {name: getattr(arguments, name) for name in REPLAYED}
    setting = {name: str(value) for name, value in given.items() if value is not None}
    return setting if setting or arguments.simulate else None


def exit_code(severity: Severity | None, fail_on: Severity) -> int:
    """0 below ``fail_on``, from there on that of the severity."""
    code = CODES[severity]
    return code if code >= CODES[fail_on] else 0
