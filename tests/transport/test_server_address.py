"""By default, records go to the server on the data directory, on whichever port it listens."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import ampmon
from ampmon.config import DEFAULT_URL, address_file, resolve, server_address
from serving import Server
from waiting import wait_for
from warm import completed


def test_an_address_is_found_where_none_is_named(data_directory: Path) -> None:
    """The address a server has written comes before the default address and after AMPMON_URL."""
    assert (resolve().url, resolve().named) == (DEFAULT_URL, False)
    address_file(data_directory).parent.mkdir(parents=True, mode=0o700)
    address_file(data_directory).write_text("http://127.0.0.1:9000\n")
    assert (resolve().url, resolve().named) == ("http://127.0.0.1:9000", False)
    assert resolve(dir=data_directory.parent).url == DEFAULT_URL
    named = resolve(environment={"AMPMON_DIR": str(data_directory), "AMPMON_URL": DEFAULT_URL})
    assert (named.url, named.named) == (DEFAULT_URL, True)


@pytest.mark.parametrize("content", [b"", b"9000", b"http://a b", b"\xff", b"ftp://127.0.0.1"])
def test_a_file_that_holds_no_address_is_left_alone(data_directory: Path, content: bytes) -> None:
    """A damaged address file gives neither an address nor an error."""
    address_file(data_directory).parent.mkdir(parents=True, mode=0o700)
    address_file(data_directory).write_bytes(content)
    assert server_address(data_directory) is None
    assert resolve().url == DEFAULT_URL


@pytest.mark.skipif(os.name != "posix", reason="files have no such modes there")
def test_an_address_that_others_can_write_is_not_believed(data_directory: Path) -> None:
    """An address file that others can write is ignored."""
    address_file(data_directory).parent.mkdir(parents=True, mode=0o700)
    address_file(data_directory).write_text("http://127.0.0.1:9000\n")
    address_file(data_directory).chmod(0o666)
    assert server_address(data_directory) is None


def test_a_run_reaches_a_server_that_starts_later_on_another_port(
    new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An online run, and `ampmon sync` of an offline one, find a server on another port."""
    monkeypatch.setenv("AMPMON_MODE", "online")
    ampmon.init(name="online")
    server = new_server()
    assert server.url != DEFAULT_URL
    wait_for(lambda: [run["name"] for run in server.get("/runs")["runs"]] == ["online"])
    ampmon.init(name="offline", mode="offline")
    ampmon.finish()
    sent = completed(["sync"])
    assert sent.returncode == 0, sent.stderr
    assert {run["name"] for run in server.get("/runs")["runs"]} == {"online", "offline"}
