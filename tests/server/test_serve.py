"""`ampmon serve` and `ampmon token` as processes: they start, refuse in one line, survive a kill, and stop cleanly."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import urllib3

from ampmon import wire
from batches import Trainer
from serving import Server, Terminal, free_port
from waiting import DEADLINE_S, wait_for
from warm import completed


def assert_refused(result: subprocess.CompletedProcess[str], says: str) -> None:
    """Check for exit code 2 and nothing but one line on stderr, which contains ``says``."""
    assert (result.returncode, result.stdout) == (2, "")
    assert re.fullmatch(r"ampmon [\w ]+: [^\n]+\n", result.stderr), result.stderr
    assert says in result.stderr


def entered(link: str) -> int:
    """The status of a link's first answer, before any redirect."""
    return urllib3.PoolManager(retries=False).request("GET", link, redirect=False).status


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the tests that leave it as it was, without a terminal."""
    with Server(tmp_path_factory.mktemp("running") / "ampmon") as server:
        yield server


def test_on_a_terminal_one_line_is_printed_and_its_link_works(
    new_server: Callable[..., Server], terminal: Terminal
) -> None:
    """At a terminal one line has a link that lets one browser in; later lines never show its code."""
    server = new_server(terminal=terminal)
    http = urllib3.PoolManager(retries=False)
    first = http.request("GET", server.address, redirect=False)
    second = http.request("GET", server.address, redirect=False)
    cookie = first.headers["Set-Cookie"].partition(";")[0]
    page = http.request("GET", server.url + "/", headers={"Cookie": cookie})

    assert (first.status, second.status, page.status) == (303, 401, 200)
    assert server.printed.count(server.address.partition("code=")[2]) == 1
    assert re.search(r"^GET /login: 401 \[\w+\]\r$", server.printed, re.MULTILINE)


def test_a_log_holds_no_code(running: Server) -> None:
    """Without a terminal the line has the bare address and names `ampmon token link`."""
    assert (
        running.announced
        == f"ampmon is at {running.url} (`ampmon token link` prints a sign-in link)"
    )


def test_a_browser_is_handed_the_link_and_no_command_line_is(
    new_server: Callable[..., Server], named_browser: Path
) -> None:
    """With --open the browser gets an owner-only file with the link; no log or command line has the code."""
    server = new_server(options=["--open"])
    wait_for(named_browser.exists)
    handed = named_browser.read_text().strip()
    page = Path(handed.removeprefix("file://"))
    shown = re.search(r'href="([^"]+)"', page.read_text())

    assert "code=" not in handed
    assert (page.parent, page.stat().st_mode) == (server.directory / "server", 0o100600)
    assert shown is not None
    assert entered(shown[1]) == 303
    assert server.address == server.url
    server.stop()
    assert not page.exists()


def test_the_link_ends_with_the_server(
    new_server: Callable[..., Server], terminal: Terminal
) -> None:
    """The link that a server printed is void once it has stopped, however many wrong codes were just tried."""
    server = new_server(terminal=terminal)
    tried = {entered(f"{server.url}/login?code=wrong{number}") for number in range(50)}
    process = server.process
    assert process is not None
    process.terminate()

    assert tried == {401}
    assert process.wait(DEADLINE_S) == 0
    assert "Traceback" not in server.printed
    again = new_server()
    assert entered(server.address.replace(server.url, again.url)) == 401


def test_a_new_link_can_be_had(running: Server) -> None:
    """`ampmon token link` finds the running server by its data directory and prints a link that works once."""
    result = completed(["token", "link", "--data-dir", str(running.directory)])
    http = urllib3.PoolManager(retries=False)

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(running.url)
    answers = [http.request("GET", result.stdout.strip(), redirect=False).status for _ in range(2)]
    assert answers == [303, 401]


def test_a_link_leads_where_readers_find_the_page(running: Server) -> None:
    """With --public-url the link begins with the proxy's address and works on the local server."""
    public = "https://ampmon.example/team/"
    words = ["token", "link", "--data-dir", str(running.directory), "--public-url", public]
    link = completed(words).stdout.strip()

    assert link.startswith(f"{public}login?code=")
    assert entered(link.replace(public, f"{running.url}/")) == 303


def test_without_a_server_there_is_no_link(tmp_path: Path) -> None:
    """Without a token or a listening server, `ampmon token link` fails in one line."""
    assert_refused(completed(["token", "link", "--data-dir", str(tmp_path)]), "ampmon serve")
    (tmp_path / "token").write_text("x" * 43)
    url = f"http://127.0.0.1:{free_port()}"
    assert_refused(completed(["token", "link", "--data-dir", str(tmp_path), "--url", url]), url)


def test_a_host_name_that_cannot_be_is_named(tmp_path: Path) -> None:
    """An impossible `--host` gives one line and exit code 2."""
    done = completed(["serve", "--host", "a..b", "--port", "0", "--data-dir", str(tmp_path)])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ampmon serve: --host a..b: it cannot be resolved\n"


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    """A port in use is refused by number, and no data directory is made."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = completed(["serve", "--port", port, "--data-dir", str(tmp_path / "new")])

    assert_refused(result, f"port {port}")
    assert not (tmp_path / "new").exists()


def test_a_second_server_on_the_same_data_is_refused(running: Server) -> None:
    """A second server on the same data directory is refused, and the line names --data-dir."""
    result = completed(["serve", "--port", "0", "--data-dir", str(running.directory)])

    assert_refused(result, "--data-dir")


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """A data directory that cannot be created is refused, and the line names --data-dir."""
    (tmp_path / "file").write_text("")
    result = completed(["serve", "--port", "0", "--data-dir", str(tmp_path / "file" / "data")])

    assert_refused(result, "--data-dir")


@pytest.mark.parametrize(
    "name",
    ["https://a.example", "a.example/", "*", "*.example", "a, b", " a", "", "::1", "ä.example"],
)
def test_a_name_that_no_request_has_is_refused(tmp_path: Path, name: str) -> None:
    """A value of --allow-host that no Host header can be is refused, and the line shows what one looks like."""
    result = completed(["serve", "--allow-host", name, "--port", "0", "--data-dir", str(tmp_path)])

    assert_refused(result, f"--allow-host {name}: write one host name, such as ampmon.example")


def test_a_name_is_served_as_it_is_given(new_server: Callable[..., Server]) -> None:
    """Every form of a host name is accepted from a client that sends it."""
    names = ["a", "GPU_1.example", "xn--4ca.example.", "10.0.0.2", "[fe80::1]", "127.0.0.1:9000"]
    server = new_server(options=[word for name in names for word in ("--allow-host", name)])

    for name in names:
        assert server.request("GET", "/api/v1/me", headers={"Host": name}).status == 200, name


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_are_not_served(tmp_path: Path, host: str) -> None:
    """Without TLS, listening on all interfaces is refused, and the line names the flags that allow it."""
    result = completed(["serve", "--host", host, "--port", "0", "--data-dir", str(tmp_path)])

    assert_refused(result, "--tls-cert and --tls-key, or a proxy that ends TLS with --behind-proxy")


def test_without_the_extra_the_way_to_it_is_named(tmp_path: Path) -> None:
    """Without the server's packages, one line gives the pip command that installs them."""
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError('No uvicorn', name='uvicorn')")
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            "from ampmon_server.cli import main; raise SystemExit(main(['serve']))",
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tmp_path), "AMPMON_DIR": str(tmp_path / "data")},
    )

    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert f"pip install '{Path(__file__).parents[2]}[server]'" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(
    new_server: Callable[..., Server], number: signal.Signals
) -> None:
    """On a signal the server exits with 0 and removes its address file and the WAL file."""
    server = new_server()
    process = server.process
    assert process is not None
    process.send_signal(number)

    assert process.wait(DEADLINE_S) == 0
    assert not (server.directory / "server" / "address").exists()
    assert not (server.directory / "server" / "ampmon.db-wal").exists()


def test_two_servers_on_one_directory_leave_each_others_address(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    """The address of the other server is left, or put back if that still runs, and none is left by the last one."""
    first = new_server()
    written = first.directory / "server" / "address"
    second = new_server(options=["--database-url", f"sqlite:///{tmp_path / 'other.db'}"])
    assert written.read_text() == f"{second.url}\n"
    second.stop()
    assert written.read_text() == f"{first.url}\n"
    second.start()
    first.stop()
    assert written.read_text() == f"{second.url}\n"
    second.stop()
    assert not written.exists()


def test_a_kill_during_ingest_loses_nothing_acknowledged(new_server: Callable[..., Server]) -> None:
    """A server killed during ingest loses no acknowledged update, stores none twice, and its database is sound."""
    server = new_server()
    trainer = Trainer()
    batches = [trainer.batch(trainer.updates(50, sampled=[0])) for _ in range(60)]
    for kill_after in (8, 20):
        acknowledged = pour(server, batches, kill_after)
        server.start()
        held = server.get(f"/runs/{trainer.run_id}/updates?limit=100000")["step"]
        assert set(acknowledged) <= set(held)
    assert pour(server, batches, kill_after=None)[-1] == 2999
    columns = server.get(f"/runs/{trainer.run_id}/updates?limit=100000")
    summary = server.get(f"/runs/{trainer.run_id}")
    server.stop()

    assert columns["step"] == list(range(3000))
    assert (summary["updates"], summary["records"], summary["lost_records"]) == (3000, 3000, 0)
    assert summary["sampled_updates"] == 60
    with sqlite3.connect(server.directory / "server" / "ampmon.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def pour(server: Server, batches: list[wire.Batch], kill_after: int | None) -> list[int]:
    """Send batches in order, and return the acknowledged steps; kill the server 4 ms into batch ``kill_after``."""
    acknowledged: list[int] = []
    killer = threading.Timer(0.004, server.kill)
    for index, batch in enumerate(batches):
        if index == kill_after:
            killer.start()
        try:
            answer = server.request(
                "POST",
                "/api/v1/ingest",
                body=wire.encode(batch),
                headers={"Content-Type": "application/msgpack"},
            )
        except urllib3.exceptions.HTTPError:
            break
        assert answer.status == 200, answer.data
        assert json.loads(answer.data)["acked"]["scaler"] >= batch.records[-1].seq
        acknowledged += [
            update.ordinal for update in batch.records if isinstance(update, wire.Update)
        ]
    if kill_after is not None:
        killer.join()
    return acknowledged
