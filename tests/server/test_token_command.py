"""`ampmon token` against a real server: tokens made, listed and revoked, and what a revocation ends."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import urllib3

from ampmon.config import address_file
from ampmon_server.cli import main
from ampmon_server.client import answering
from ampmon_server.client.client import ApiClient, ClientError
from ampmon_server.http.address import address_written
from ampmon_server.http.auth.keys import Keys
from ampmon_server.settings import Settings
from batches import Trainer
from certificates import Authority
from http_server import HttpServer, QuietHandler
from posted import post
from serving import Server
from typed import Done, typed


Token = Callable[..., Done]


@pytest.fixture
def token(server: Server, monkeypatch: pytest.MonkeyPatch) -> Token:
    """Run `ampmon token` on the server's data directory."""
    monkeypatch.delenv("AMPMON_TOKEN", raising=False)

    def run(*words: str, directory: Path = server.directory) -> Done:
        return typed("token", *words, "--data-dir", directory)

    return run


def bearing(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_a_token_is_made_used_listed_and_revoked(server: Server, token: Token) -> None:
    """A new token is printed alone, grants only its scope, is listed without its secret, and fails once revoked."""
    code, printed, said = token("new", "ci", "--scope", "read", "--owner", "ada", "--expires", "9d")
    secret = printed.strip()
    assert code == 0
    assert re.fullmatch(r"ampmon_[\w-]{43}", secret)
    assert "not shown again" in said

    assert server.request("GET", "/api/v1/runs", headers=bearing(secret)).status == 200
    refused = server.request("DELETE", f"/api/v1/runs/{uuid4()}", headers=bearing(secret))
    assert json.loads(refused.data)["scope"] == "ingest"
    _, listed, _ = token("list")
    titles, row = listed.splitlines()
    assert " ".join(titles.split()) == (
        "id name owner scopes projects created expires last used revoked"
    )
    assert row.split()[1:5] == ["ci", "ada", "read", "all"]
    assert secret not in listed

    assert token("revoke", row.split()[0])[0] == 0
    assert server.request("GET", "/api/v1/runs", headers=bearing(secret)).status == 401
    assert token("revoke", "ci") == (
        2,
        "",
        "ampmon token revoke: There is no token 'ci' to revoke.\n",
    )


def test_a_token_is_for_training_and_looking_by_default(token: Token) -> None:
    """By default a token ingests and reads in all projects and never expires."""
    token("new", "mine")
    _, listed, _ = token("list")

    assert listed.splitlines()[1].split()[3:5] == ["ingest,read", "all"]
    assert "never" in listed


def test_what_cannot_be_is_said(token: Token) -> None:
    """An invalid name, expiry or project is refused in one line, and no token is made."""
    for words, why in (
        (("a b",), "name"),
        (("x", "--expires", "90"), "such as 90d"),
        (("x", "--project", ""), "projects"),
    ):
        code, printed, said = token("new", *words)
        assert (code, printed, said.count("\n")) == (2, "", 1)
        assert why in said
    assert len(token("list")[1].splitlines()) == 1


def test_an_admin_far_away_has_a_token_too(
    server: Server, token: Token, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the data directory AMPMON_TOKEN is used: an admin's works, another's error names the scope."""
    secrets = {
        scope: token("new", scope, "--scope", scope)[1].strip() for scope in ("admin", "read")
    }
    far = {"directory": tmp_path / "elsewhere"}
    assert token("list", "--url", server.url, **far)[0] == 2
    monkeypatch.setenv("AMPMON_TOKEN", secrets["read"])
    assert "scope `admin`" in token("list", "--url", server.url, **far)[2]
    monkeypatch.setenv("AMPMON_TOKEN", secrets["admin"])
    assert token("list", "--url", server.url, **far)[0] == 0


def test_a_server_elsewhere_is_shown_one_token_and_no_other(
    new_server: Callable[..., Server],
    token: Token,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the directory's own server gets another token after rejecting AMPMON_TOKEN; --token-file has no fallback."""
    authority, mine, wrong = Authority(tmp_path), tmp_path / "mine", tmp_path / "wrong"
    cert, key = authority.issue()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    tls = ["--tls-cert", str(cert), "--tls-key", str(key)]
    other = new_server(tmp_path / "other", options=tls, ca=authority.file)
    mine.mkdir()
    (mine / "token").write_text(other.token)
    wrong.write_text("ampmon_of-another-server")
    there = ("--url", other.address)
    assert token("list", *there, directory=mine)[0] == 0
    monkeypatch.setenv("AMPMON_TOKEN", wrong.read_text())
    code, _, said = token("list", *there, directory=mine)
    assert code == 2
    assert "does not accept this token" in said
    assert main(["health", *there, "--data-dir", str(mine)]) == 1
    assert main(["alerts", "list", *there, "--data-dir", str(mine)]) == 2
    shutil.copytree(other.directory / "server", mine / "server")
    assert token("list", *there, directory=mine)[0] == 0
    monkeypatch.setenv("AMPMON_TOKEN", other.token)
    assert token("list", *there, "--token-file", str(wrong), directory=mine)[0] == 2


def test_a_killed_server_hides_no_other(
    server: Server,
    new_server: Callable[..., Server],
    token: Token,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The address that a killed server left is not asked if AMPMON_URL names a server. A running one goes first."""
    killed = new_server(tmp_path / "killed")
    monkeypatch.setenv("AMPMON_TOKEN", server.token)
    here = {"directory": killed.directory}
    assert token("link", **here)[1].startswith(killed.url)
    killed.kill()

    assert (killed.directory / "server" / "address").exists()
    assert token("link", **here)[1].startswith(server.url)
    assert main(["health", "--data-dir", str(killed.directory)]) == 0


def test_another_directorys_server_hides_no_runs(
    new_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another directory's server runs at the address that a killed server left, commands read their own."""
    monkeypatch.delenv("AMPMON_TOKEN", raising=False)
    killed = new_server(tmp_path / "killed")
    trainer = Trainer(project="mine")
    post(killed, trainer.batch(trainer.updates(3)))
    killed.kill()
    new_server(tmp_path / "another", port=killed.port)
    done = typed("runs", "--project", "mine", "--data-dir", killed.directory)

    assert (done.code, "no server runs on" in done.err) == (0, True)
    assert len(done.out.splitlines()) == 2


def test_a_server_that_does_not_answer_is_asked_with_one_token(tmp_path: Path) -> None:
    """A server that does not answer with the token that is named would not answer with the directory's own either."""
    asked: list[str] = []

    class Hung(QuietHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.close_connection = True

    with HttpServer(Hung) as hung:
        url = f"http://{hung.netloc}"
        with pytest.raises(ClientError), ApiClient(url, "") as server:
            server.get("/me")
        once = len(asked)
        Keys.load(tmp_path)
        with address_written(address_file(tmp_path), url):
            assert answering.running(Settings(data_directory=tmp_path), 43 * "x") is None
    assert len(asked) == 2 * once > 0


def news(stream: urllib3.BaseHTTPResponse) -> Iterator[dict[str, Any]]:
    """The events of a stream until it ends."""
    for line in stream:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


def test_a_stream_tells_of_the_callers_projects_and_ends_with_its_token(
    server: Server, token: Token
) -> None:
    """A stream covers only its token's projects, deletions included, and ends when the token is revoked."""
    secret = token("new", "page", "--scope", "read", "--project", "vision")[1].strip()
    mine, hidden = Trainer(uuid4(), project="vision"), Trainer(uuid4(), project="speech")
    post(server, hidden.batch(hidden.updates(1)))
    post(server, mine.batch(mine.updates(1)))
    stream = server.request("GET", "/api/v1/live", headers=bearing(secret), preload_content=False)
    coming, received = news(stream), []

    def hear(run: Trainer, version: int) -> None:
        while (str(run.run_id), version) not in received:
            each = next(coming)
            received.append((each["run"], each["version"]))

    hear(mine, 1)
    for each in (hidden, mine):
        post(server, each.batch(each.updates(1)))
    later = Trainer(uuid4(), project="vision")
    post(server, later.batch(later.updates(1)))
    hear(mine, 2)
    hear(later, 1)
    for each in (hidden, mine):
        server.request("DELETE", f"/api/v1/runs/{each.run_id}")
    hear(mine, 3)
    assert token("revoke", "page")[0] == 0
    assert list(coming) == []
    assert sorted(received) == sorted(
        [*((str(mine.run_id), n) for n in (1, 2, 3)), (str(later.run_id), 1)]
    )


def test_the_servers_own_token_needs_no_list(server: Server, token: Token) -> None:
    """The data directory's own token is not listed and cannot be revoked."""
    assert os.stat(server.directory / "token").st_size > 40
    assert token("list")[1].splitlines()[1:] == []
    assert token("revoke", "own")[0] == 2
