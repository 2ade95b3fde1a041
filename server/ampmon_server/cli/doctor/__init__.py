"""``ampmon doctor``: diagnoses a run or explains an error message. CI jobs can use its exit code."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ampmon.wire import Severity
from ampmon_server.cli.doctor.explaining import show as show_entries
from ampmon_server.cli.doctor.matching import find
from ampmon_server.cli.exits import CANNOT, reason
from ampmon_server.cli.which import add_server
from ampmon_server.pages.messages import MessageEntry


if TYPE_CHECKING:
    from ampmon_server.client import ApiClient

CODES: dict[Severity | None, int] = {None: 0, "notice": 10, "warning": 20, "critical": 30}
"""Exit code of a run's worst finding, if it is at least as severe as --fail-on. Otherwise the code is 0."""
FRAMEWORKS = ("deepspeed", "megatron", "fairseq", "apex", "prints")
POLICIES = ("torch", "fixed", "megatron", "deepspeed", "fairseq")
SENTENCE = 5
"""Text of at least this many words is first looked up as a message, then as a run's name."""
READ_MAX = 2**20
"""Characters of standard input to search, counted from its end."""
UNKNOWN = (
    "no entry of the error index matches this message. Search docs/errors.md for its rarest words; "
    "for a whole training log, use ampmon doctor --log FILE"
)
DESCRIPTION = (
    "Diagnose a run, or explain an error message. Text of five words or more is looked up in the index of error "
    "messages first, shorter text among the runs first; without a match, in the other place. Explaining a message "
    "needs no server. It exits with 0, or with 2 if no entry matches the message."
)
REPLAYED = ("policy", "init_scale", "growth_factor", "backoff_factor", "growth_interval")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument(
        "run",
        nargs="?",
        default="latest",
        metavar="RUN|MESSAGE",
        help="a run, by its id, the beginning of it, or its name (the newest run); or an error message, in quotes; "
        "or - to read the messages in the last MB of standard input",
    )
    parser.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="diagnose the text log of a run that ampmon did not record",
    )
    parser.add_argument(
        "--log-of",
        choices=FRAMEWORKS,
        help="the framework that wrote the log (the first whose lines it contains)",
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument(
        "--fail-on",
        choices=get_args(Severity),
        default="warning",
        help="the lowest severity with an exit code other than 0 (%(default)s)",
    )
    _add_replay(parser.add_argument_group("replay the run under another policy"))
    add_server(parser)


def _add_replay(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--simulate", action="store_true", help="replay the run's updates, and recommend settings"
    )
    group.add_argument(
        "--policy",
        choices=POLICIES,
        help="policy to replay (torch; other settings default to the run's)",
    )
    group.add_argument("--init-scale", type=float, metavar="SCALE", help="initial scale")
    group.add_argument(
        "--growth-factor", type=float, metavar="FACTOR", help="factor by which the scale grows"
    )
    group.add_argument(
        "--backoff-factor", type=float, metavar="FACTOR", help="factor by which the scale falls"
    )
    group.add_argument(
        "--growth-interval", type=int, metavar="N", help="grow after N updates without a skip"
    )


def run(arguments: argparse.Namespace) -> int:
    """Diagnose a run or explain a message. Return 0, the code of the worst finding, or 2 without an answer."""
    if arguments.run == "-":
        return _explain(arguments, find(_piped()))
    found = [] if arguments.log else find(arguments.run)
    is_sentence = len(arguments.run.split()) >= SENTENCE
    reads_runs = find_spec("fastapi") is not None
    if (found and is_sentence) or (not reads_runs and (found or is_sentence)):
        return _explain(arguments, found)
    from ampmon_server.client import ClientError

    try:
        return _diagnose(arguments)
    except (ClientError, OSError) as why:
        if found:
            return _explain(arguments, found)
        if is_sentence:
            print(f"ampmon doctor: {UNKNOWN}", file=sys.stderr)
        print(f"ampmon doctor: {reason(why)}", file=sys.stderr)
        return CANNOT


def _piped() -> str:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a log may hold any bytes
    return sys.stdin.read()[-READ_MAX:]


def _explain(arguments: argparse.Namespace, found: Sequence[MessageEntry]) -> int:
    if not found:
        print(f"ampmon doctor: {UNKNOWN}", file=sys.stderr)
        return CANNOT
    show_entries(found, as_json=arguments.json)
    return 0


def _diagnose(arguments: argparse.Namespace) -> int:
    """Print the diagnosis of a run and return the exit code. Raises ClientError and OSError."""
    from ampmon_server.cli.doctor.printing import Paper, waiting
    from ampmon_server.cli.doctor.replaying import show
    from ampmon_server.client import choose
    from ampmon_server.client.answers import Diagnosed, Simulated, read

    with waiting("waiting for the server"), _asked(arguments) as server:
        asked = choose(server, arguments.run)
        body = server.get(f"/runs/{asked.run_id}/diagnosis")
        diagnosed = read(body, Diagnosed)
        if (setting := _setting(arguments)) is not None:
            body = server.get(f"/runs/{asked.run_id}/simulate", setting)
            simulated = read(body, Simulated)
    if arguments.json:
        print(body.decode())
    else:
        paper = Paper(asked, server.page, log=arguments.log)
        paper.show(diagnosed)
        if setting is not None:
            show(paper, simulated, asked=bool(setting))
    return exit_code(diagnosed.severity, arguments.fail_on)


@contextmanager
def _asked(arguments: argparse.Namespace) -> Iterator[ApiClient]:
    """Yield the server that has the run. For a log, start a temporary server that holds the log as a run."""
    from ampmon_server.client import ClientError, answering

    if arguments.log is None:
        with answering(arguments.url, arguments.data_dir, arguments.token_file) as server:
            yield server
        return
    from ampmon_server.client.embedded_server import filled
    from ampmon_server.exchange.logs import CannotImport, read_log
    from ampmon_server.exchange.sending import log_batches, name_of, send

    try:
        log = read_log(arguments.log, arguments.log_of)
        batches = list(log_batches(log, name_of(arguments.log), "logs"))
    except CannotImport as why:
        raise ClientError(str(why)) from None
    print(
        f"{arguments.log}: read as a log of {log.framework}, {len(log.marks):,} lines report the scale; "
        "steps between them are estimates",
        file=sys.stderr,
    )
    with filled(lambda url, token: send(url, token, batches)) as server:
        yield server


def _setting(arguments: argparse.Namespace) -> dict[str, str] | None:
    """The policy to replay as a query, empty for the run's own policy. None for no replay."""
    given = {name: getattr(arguments, name) for name in REPLAYED}
    setting = {name: str(value) for name, value in given.items() if value is not None}
    return setting if setting or arguments.simulate else None


def exit_code(severity: Severity | None, fail_on: Severity) -> int:
    """Return 0 below ``fail_on``, else the code of the severity."""
    code = CODES[severity]
    return code if code >= CODES[fail_on] else 0
