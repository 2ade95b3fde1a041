"""``ampmon doctor``: what is wrong with a run, why, and what to change; its exit code is for CI and schedulers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

from ampmon.wire import Severity


CANNOT = 2
"""Nothing was diagnosed; one line says why. It is argparse's own code too."""
CODES: dict[Severity | None, int] = {None: 0, "notice": 10, "warning": 20, "critical": 30}
"""What a run's worst finding makes the exit code, from --fail-on on; else it is 0."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "run",
        nargs="?",
        default="latest",
        metavar="RUN",
        help="its id or the beginning of it, or its name (the newest run)",
    )
    parser.add_argument("--json", action="store_true", help="print the server's answer as it is")
    parser.add_argument(
        "--fail-on",
        choices=get_args(Severity),
        default="warning",
        help="the least severity whose exit code is not 0 (%(default)s)",
    )
    parser.add_argument("--url", help="the server to ask (the one that runs on the data directory)")
    parser.add_argument("--data-dir", type=Path, help="where data lies (AMPMON_DIR)")
    parser.add_argument(
        "--token-file", type=Path, help="file with a token that several servers share"
    )


def run(arguments: argparse.Namespace) -> int:
    """Diagnose a run and print it: 0, or the code of its worst finding; 2 where there is no answer."""
    from ampmon_server.cli.doctor.answers import Diagnosed, read
    from ampmon_server.cli.doctor.asking import Unanswered
    from ampmon_server.cli.doctor.choosing import choose
    from ampmon_server.cli.doctor.place import answering
    from ampmon_server.cli.doctor.printing import Paper, waiting

    try:
        with waiting("asking"), answering(arguments) as server:
            asked = choose(server, arguments.run)
            body = server.get(f"/runs/{asked.run_id}/diagnosis")
        diagnosed = read(body, Diagnosed)
    except Unanswered as why:
        print(f"ampmon doctor: {why}", file=sys.stderr)
        return CANNOT
    if arguments.json:
        print(body.decode())
    else:
        Paper(asked, server.page).show(diagnosed)
    return exit_code(diagnosed.severity, arguments.fail_on)


def exit_code(severity: Severity | None, fail_on: Severity) -> int:
    """0 below ``fail_on``, from there on that of the severity."""
    code = CODES[severity]
    return code if code >= CODES[fail_on] else 0
