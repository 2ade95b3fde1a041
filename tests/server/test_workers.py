"""`ampmon serve --workers`: several processes behind one address, as one server."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import urllib3

from ampmon import wire
from batches import Trainer
from certificates import Authority
from postgres import Postgres
from serving import Server, Terminal
from waiting import DEADLINE_S, wait_for
from warm import FORK_WORKERS, completed


def workers(server: Server) -> set[int]:
    """Process ids of a server's workers, started by it or by its fork server."""
    assert server.process is not None
    started = {pid: command_of(pid) for pid in children(server.process.pid)}
    forking = [pid for pid in started if "forkserver" in started[pid]]
    return {pid for pid in started if "spawn_main" in started[pid]}.union(*map(children, forking))


def children(pid: int) -> set[int]:
    """The process ids of a process's children."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for each in lists for child in each.read_text().split()}


def command_of(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


@pytest.fixture(scope="module")
def kept_crew(
    postgres: Postgres, migrated: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server of two workers on PostgreSQL, forked because loading a worker anew takes over a second."""
    url = postgres.new_database(migrated)
    server = Server(
        tmp_path_factory.mktemp("crew"),
        options=["--database-url", url, "--workers", "2"],
        before=FORK_WORKERS,
    )
    yield server
    server.stop()
    postgres.drop(url)


@pytest.fixture
def crew(kept_crew: Server) -> Server:
    """The shared server, started if necessary."""
    if kept_crew.process is None:
        kept_crew.start()
    return kept_crew


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_workers_are_one_server(
    new_server: Callable[..., Server], database: str, terminal: Terminal, tmp_path: Path
) -> None:
    """Workers share the certificate, the cookie and one-time links; SIGTERM ends all of them."""
    authority = Authority(tmp_path)
    cert, key = authority.issue()
    options = ["--database-url", database, "--workers=2"]
    options += ["--tls-cert", str(cert), "--tls-key", str(key)]
    crew = new_server(terminal=terminal, options=options, ca=authority.file, before=FORK_WORKERS)
    link = crew.address
    http = urllib3.PoolManager(retries=False, ca_certs=str(authority.file))
    # Each request opens a connection, so either worker may get it.
    close = {"Connection": "close"}
    first = http.request("GET", link, redirect=False, headers=close)
    again = [http.request("GET", link, redirect=False, headers=close).status for _ in range(10)]
    cookie = {"Cookie": first.headers["Set-Cookie"].partition(";")[0], **close}
    pages = [http.request("GET", crew.url + "/", headers=cookie).status for _ in range(10)]
    made = crew.login_link()
    logged = [http.request("GET", made, redirect=False, headers=close).status for _ in range(4)]

    assert (first.status, set(again), set(pages)) == (303, {401}, {200})
    assert logged == [303, 401, 401, 401]
    running, process = workers(crew), crew.process
    assert process is not None
    assert len(running) == 2
    process.terminate()
    assert process.wait(DEADLINE_S) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in running)
    assert not (crew.directory / "server" / "address").exists()


def test_a_dead_worker_is_replaced(crew: Server) -> None:
    """A dead worker is replaced, requests are answered meanwhile, and one log line says so."""
    before, replacements = workers(crew), crew.printed.count("another takes its place")
    os.kill(min(before), signal.SIGKILL)
    wait_for(lambda: min(before) not in workers(crew))  # until then a request to it may fail
    answers = []

    def replaced() -> bool:
        answers.append(crew.request("GET", "/api/v1/runs").status)
        return len(workers(crew)) == 2 and workers(crew) != before

    wait_for(replaced)
    assert set(answers) == {200}
    assert crew.printed.count("another takes its place") == replacements + 1


class Load:
    """Clients that send requests all the time on kept connections, and never retry."""

    def __init__(self, server: Server) -> None:
        self.trainer = Trainer()
        self.sent = 0
        self.reads = 0
        self.streams = 0
        self.seen = -1
        """The last step that a stream reported."""
        self.failed: list[str] = []
        self._server = server
        self._over = threading.Event()

    @contextmanager
    def running(self) -> Iterator[Load]:
        """Run three clients meanwhile: one sends, one reads, and one follows the event stream."""
        work = (self._send, self._read, self._follow)
        threads = [threading.Thread(target=self._keep, args=(each,)) for each in work]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _keep(self, work: Callable[[Callable[..., urllib3.BaseHTTPResponse]], None]) -> None:
        http = urllib3.PoolManager(retries=False, timeout=DEADLINE_S)
        token = {"Authorization": f"Bearer {self._server.token}"}

        def ask(method: str, path: str, **more: object) -> urllib3.BaseHTTPResponse:
            headers = {**token, "Content-Type": "application/msgpack"}
            answer = http.request(method, self._server.url + path, headers=headers, **more)  # type: ignore[arg-type]
            if answer.status != 200:
                raise AssertionError(f"{method} {path}: {answer.status}")
            return answer

        try:
            while not self._over.wait(0.1):  # leave the workers some processor time
                work(ask)
        except Exception as error:
            self.failed.append(repr(error))

    def _send(self, ask: Callable[..., urllib3.BaseHTTPResponse]) -> None:
        batch = self.trainer.batch(self.trainer.updates(5))
        ask("POST", "/api/v1/ingest", body=wire.encode(batch))
        self.sent += 5

    def _read(self, ask: Callable[..., urllib3.BaseHTTPResponse]) -> None:
        ask("GET", "/api/v1/runs")
        self.reads += 1

    def _follow(self, ask: Callable[..., urllib3.BaseHTTPResponse]) -> None:
        """Follow one stream to its end, which must not be cut off."""
        self.streams += 1
        stream = ask("GET", "/api/v1/live", preload_content=False)
        for line in stream:
            if line.startswith(b"data: "):
                self.seen = max(self.seen, json.loads(line[6:])["step"])
            if self._over.is_set():
                stream.close()
                return


def test_workers_are_replaced_without_a_failed_request(crew: Server) -> None:
    """At SIGHUP workers are replaced, or stay if no new one starts, and no request fails meanwhile."""
    before = workers(crew)
    process, token = crew.process, crew.directory / "token"
    assert process is not None
    with Load(crew).running() as load:
        wait_for(lambda: load.seen > 0)
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: len(before & workers(crew)) < 2)
        wait_for(lambda: "2 workers were replaced" in crew.printed)
        after = workers(crew)  # all serve: the damaged token would end one that is still starting
        kept = token.rename(token.with_name("kept"))
        token.write_text("damaged")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: "the new worker does not start" in crew.printed)
        stayed = workers(crew)
        kept.rename(token)
        sent = load.sent
        wait_for(lambda: load.sent > sent + 20 and load.seen > sent)

    assert load.failed == []
    assert len(after) == 2
    assert not before & after
    assert stayed == after
    assert load.streams >= 2
    assert crew.get(f"/runs/{load.trainer.run_id}")["updates"] == load.sent
    assert "Traceback" not in crew.printed


def test_workers_end_with_their_parent(crew: Server) -> None:
    """When the supervisor is killed, its workers exit too and free the port."""
    running = workers(crew)
    crew.kill()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in running))
    assert not crew.answers()


def test_several_workers_on_sqlite_are_refused(tmp_path: Path) -> None:
    """Two workers on SQLite are refused in one line, and nothing is made."""
    result = completed(["serve", "--port=0", f"--data-dir={tmp_path / 'new'}", "--workers=2"])

    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "postgresql+psycopg://" in result.stderr
    assert not (tmp_path / "new").exists()


def test_a_proxy_may_be_named(new_server: Callable[..., Server], tmp_path: Path) -> None:
    """A host named by `--allow-host` is served with the token of `--token-file`, and links keep the name."""
    token = tmp_path / "secret"
    token.write_text("t" * 43)
    server = new_server(options=["--allow-host", "gpus.example"], token_file=token)
    host = {"Host": "gpus.example", "X-Forwarded-Proto": "https"}
    answer = server.request("POST", "/api/v1/login-links", headers=host)

    assert answer.status == 201
    assert answer.json()["url"].startswith("https://gpus.example/login?code=")
    assert server.request("GET", "/", headers={"Host": "other.example"}).status == 421
