"""``ampmon bundle``: packs a run and the versions of this installation into one file for a bug report."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from ampmon_server.cli.exits import CANNOT, reason, size_of
from ampmon_server.cli.report import made, refuse
from ampmon_server.cli.which import add_run, add_server
from ampmon_server.model.names import file_name


if TYPE_CHECKING:
    from ampmon_server.client import ApiClient
    from ampmon_server.exchange.formats import Table

_ANSWERS = ("", "/diagnosis")
_TABLES: tuple[Table, ...] = ("updates", "skips", "events", "scalars")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the file to write (the run's name, here)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    add_server(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the file and print its name and size. Return 0, or 2 if no file was written."""
    from ampmon_server.client import ClientError, answering, choose

    try:
        with answering(arguments.url, arguments.data_dir, arguments.token_file) as server:
            chosen = choose(server, arguments.run)
            file = arguments.output or Path(f"{file_name(chosen.name)}.ampmon.zip")
            refuse(file, arguments.force)
            _write(server, chosen.run_id, file)
    except (ClientError, OSError) as why:
        print(f"ampmon bundle: {reason(why)}", file=sys.stderr)
        return CANNOT
    print(f"{file}: {size_of(file)}. Check its contents before you send it.")
    return 0


def _write(server: ApiClient, run_id: str, file: Path) -> None:
    """Write to a temporary file and rename it at the end, so a failure leaves no partial file."""
    from ampmon_server.cli.export import copy

    beside = file.with_name(f".{file.name}.part")
    try:
        with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as bundle:
            for answer in _ANSWERS:
                body = server.get(f"/runs/{run_id}{answer}")
                bundle.writestr(f"{answer[1:] or 'run'}.json", _without_host(body))
            for table in _TABLES:
                with bundle.open(f"{table}.jsonl", "w", force_zip64=True) as output:
                    copy(server, run_id, table, "jsonl", output, lambda _: None)
            bundle.writestr("report.html", made(server, run_id))
            bundle.writestr("environment.json", json.dumps(dict(_environment()), indent=1))
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def _without_host(body: bytes) -> str:
    """Remove the owner and the names of machines from an answer: a bug report does not need them."""
    answer = json.loads(body)
    for each in (answer, *answer.get("identity", {}).get("attempts", ())):
        for name in ("owner", "host", "boot_id"):
            if name in each:
                each[name] = "[removed]"
    return json.dumps(answer, indent=1)


def _environment() -> Iterator[tuple[str, object]]:
    """Versions of Python, the platform and packages. Never environment variables, which may hold secrets."""
    yield "python", sys.version
    yield "platform", platform.platform()
    yield "machine", platform.machine()
    found = {each.metadata["Name"]: each.version for each in metadata.distributions()}
    yield "packages", dict(sorted(found.items()))
