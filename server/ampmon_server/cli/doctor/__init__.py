"""``ampmon doctor``: diagnoses a run or explains an error message. CI jobs can use its exit code."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from ampmon.errors import AmpmonError, ConfigurationError
from ampmon.wire import Severity
from ampmon_server.cli.doctor import explaining
from ampmon_server.client import ApiClient, answering, choose
from ampmon_server.client.answers import Diagnosed, Simulated, read
from ampmon_server.exchange.logs import read_log
from ampmon_server.exchange.sending import log_batches, name_of, send
from ampmon_server.model.words import plural
from ampmon_server.pages.messages import MessageEntry


CODES: dict[Severity | None, int] = {None: 0, "notice": 10, "warning": 20, "critical": 30}
"""Exit code of a run's worst finding, if it is at least as severe as --fail-on. Otherwise the code is 0."""
SENTENCE = 5
"""Text of at least this many words is first looked up as a message, then as a run's name."""
READ_MAX = 2**20
"""Characters of standard input to search, counted from its end."""
UNKNOWN = (
    "no entry of the error index matches this message. Search docs/errors.md for its rarest words; "
    "for a whole training log, use ampmon doctor --log FILE"
)
REPLAYED = ("policy", "init_scale", "growth_factor", "backoff_factor", "growth_interval")


def run(arguments: argparse.Namespace) -> int:
    """Diagnose a run or explain a message. Return 0, or the code of the worst finding."""
    if arguments.run == "-":
        return _explain(arguments, explaining.find(_piped()))
    found = [] if arguments.log else explaining.find(arguments.run)
    is_sentence = len(arguments.run.split()) >= SENTENCE
    reads_runs = find_spec("fastapi") is not None
    if (found and is_sentence) or (not reads_runs and (found or is_sentence)):
        return _explain(arguments, found)
    try:
        return _diagnose(arguments)
    except (AmpmonError, OSError):
        if found:
            return _explain(arguments, found)
        if is_sentence:
            print(f"ampmon doctor: {UNKNOWN}", file=sys.stderr)
        raise


def _piped() -> str:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a log may hold any bytes
    return sys.stdin.read()[-READ_MAX:]


def _explain(arguments: argparse.Namespace, found: Sequence[MessageEntry]) -> int:
    if not found:
        raise ConfigurationError(UNKNOWN)
    explaining.show(found, as_json=arguments.json)
    return 0


def _diagnose(arguments: argparse.Namespace) -> int:
    """Print the diagnosis of a run and return the exit code. Raises AmpmonError and OSError."""
    from rich.console import Console

    from ampmon_server.cli.doctor.printing import Paper, show_replay

    waiting = Console(stderr=True).status("waiting for the server")  # shown only on a terminal
    with waiting, _asked(arguments) as server:
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
            show_replay(paper, simulated, asked=bool(setting))
    return exit_code(diagnosed.severity, arguments.fail_on)


@contextmanager
def _asked(arguments: argparse.Namespace) -> Iterator[ApiClient]:
    """Yield the server that has the run. For a log, start a temporary server that holds the log as a run."""
    if arguments.log is None:
        with answering.asked(arguments) as server:
            yield server
        return
    log = read_log(arguments.log, arguments.log_of)
    batches = list(log_batches(log, name_of(arguments.log), "logs"))
    print(
        f"{arguments.log}: read as a log of {log.framework}, {plural(len(log.marks), 'line')} with the scale; "
        "steps between lines are estimates",
        file=sys.stderr,
    )
    with answering.filled(lambda url, token: send(url, token, batches)) as server:
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
