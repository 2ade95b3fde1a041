"""Two servers on one PostgreSQL, and a browser: what is stored by one is seen live at the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from posted import PostedRun
from postgres import Postgres
from serving import Server
from web.reader import Reader


NO_POLLING = """(set => {
    window.setInterval = (work, wait, ...rest) => wait < 5000 ? set(work, wait, ...rest) : 0;
})(window.setInterval)"""
"""The page asks for what it shows every ten seconds, too: that must not be what the news are taken for."""


@pytest.fixture
def pair(
    new_server: Callable[..., Server], tmp_path: Path, empty_database: str, own_port: int
) -> tuple[Server, Server]:
    """Two servers with data directories of their own, on one database and with one token."""
    token = tmp_path / "shared-token"
    token.write_text("t" * 43)
    options = ["--database-url", empty_database]
    return (
        new_server(tmp_path / "one", options=options, token_file=token),
        new_server(tmp_path / "two", options=options, token_file=token, port=own_port),
    )


def see_live(reader: Reader, run: PostedRun) -> None:
    """Post a skipped update where the run posts, and wait for it on the page that is open."""
    drawn = reader.points("skips")
    run.updates(skipped=True)
    reader.wait("the news", lambda: reader.points("skips") > drawn)


def test_two_servers_show_each_others_updates(
    pair: tuple[Server, Server], new_reader: Callable[[Server], Reader], postgres: Postgres
) -> None:
    """A page open at one server follows what is posted to the other, and goes on when its notices are cut off."""
    one, two = pair
    run = PostedRun(one)
    run.updates(skipped=True)
    reader = new_reader(two)
    reader.page.add_init_script(NO_POLLING)
    reader.open(f"#{run.path}")
    reader.wait("the chart", lambda: reader.points("skips"))
    see_live(reader, run)
    cut = postgres.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    )
    assert len(cut) == 2
    see_live(reader, run)
