"""Two servers on one PostgreSQL: a browser at one shows live what the other stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import make_url

from posted import PostedRun
from postgres import Postgres
from serving import Server
from web.reader import Reader


NO_POLLING = """(set => {
    window.setInterval = (work, wait, ...rest) => wait < 5000 ? set(work, wait, ...rest) : 0;
})(window.setInterval)"""
"""Turns off the page's reload every ten seconds, which could pass for a live update."""


@pytest.fixture
def pair(
    new_server: Callable[..., Server], tmp_path: Path, empty_database: str, own_port: int
) -> tuple[Server, Server]:
    """Two servers with separate data directories, one database and one token."""
    token = tmp_path / "shared-token"
    token.write_text("t" * 43)
    options = ["--database-url", empty_database]
    return (
        new_server(tmp_path / "one", options=options, token_file=token),
        new_server(tmp_path / "two", options=options, token_file=token, port=own_port),
    )


def see_live(reader: Reader, run: PostedRun) -> None:
    """Post a skipped update and wait until the open page shows it."""
    drawn = reader.points("skips")
    run.updates(skipped=True)
    reader.wait("the news", lambda: reader.points("skips") > drawn)


def test_two_servers_show_each_others_updates(
    pair: tuple[Server, Server],
    new_reader: Callable[[Server], Reader],
    postgres: Postgres,
    empty_database: str,
) -> None:
    """A page at one server follows updates posted to the other, even after PostgreSQL drops the connections of both."""
    (one, two), name = pair, make_url(empty_database).database
    run = PostedRun(one)
    run.updates(skipped=True)
    reader = new_reader(two)
    reader.page.add_init_script(NO_POLLING)
    reader.open(f"#{run.path}")
    reader.wait("the chart", lambda: reader.points("skips"))
    see_live(reader, run)
    reader.ignore_page_errors("503")  # the answer to a request whose connection ends
    cut = postgres.execute(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    )
    assert len(cut) >= 2
    see_live(reader, run)
