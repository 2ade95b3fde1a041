"""Commands whose output is closed, full or in another encoding: they end in a line or quietly, never in a traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ampmon_server.cli import main
from batches import Trainer
from posted import post
from serving import Server
from typed import typed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a run whose export fills a pipe several times."""
    with Server(tmp_path_factory.mktemp("output") / "ampmon") as server:
        trainer = Trainer(name="2⁸ wide")
        post(server, trainer.batch(trainer.updates(5000)))
        yield server


def in_bash(line: str, server: Server, **environment: str) -> tuple[str, str]:
    """Run a line of bash in which `ampmon` is this one. Return what it prints, and its errors."""
    script = f'ampmon() {{ {sys.executable} -m ampmon_server.cli "$@"; }}; {line}'
    where = {"AMPMON_DIR": str(server.directory), "AMPMON_URL": server.url, **environment}
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, **where}, capture_output=True, check=False
    )
    return done.stdout.decode("latin-1"), done.stderr.decode()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("ampmon export -o - | head -c 10; echo ${PIPESTATUS[0]}", 1),
        ("ampmon runs --json | true; echo ${PIPESTATUS[0]}", 1),
        ("ampmon token list >&-; echo $?", 0),
        ("ampmon export -o - >&-; echo $?", 0),
        ("ampmon | true; echo ${PIPESTATUS[0]}", 1),
        ("ampmon run sh -c 'exit 7' >&-; echo $?", 7),
        ("ampmon doctor - <&- 2>&-; echo $?", 2),
        ("ampmon delete latest <&- 2>&-; echo $?", 2),
    ],
)
def test_nothing_is_said_if_nobody_reads(server: Server, line: str, code: int) -> None:
    """A closed pipe ends a command with 1, and a closed stream changes nothing. Neither prints an error."""
    out, err = in_bash(line, server)

    assert err == ""
    assert out.endswith(f"{code}\n")


@pytest.mark.parametrize("words", ["ampmon runs", "ampmon"])
def test_a_full_disk_is_said_in_a_line(server: Server, words: str) -> None:
    """Output that a full disk refuses gives one line and exit code 2."""
    assert in_bash(f"{words} > /dev/full; echo $?", server) == (
        "2\n",
        f"{words}: No space left on device\n",
    )


def test_ctrl_c_is_quiet_while_modules_are_loaded() -> None:
    """Ctrl-C before a command is loaded ends it with 130 and prints nothing, as later."""
    program = """
import sys
from ampmon_server.cli import main

class Interrupted:
    @staticmethod
    def find_spec(name, *_):
        if name == "ampmon_server.cli.parser":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted)
sys.exit(main(["runs"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_an_error_without_words_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the system that nobody expected and that says nothing is raised, not printed as an empty line."""

    def late(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr("ampmon_server.client.client.ApiClient.get", late)
    monkeypatch.setenv("AMPMON_TOKEN", "t" * 43)
    with pytest.raises(TimeoutError):
        main(["runs", "--url", "http://127.0.0.1:1"])


def test_health_is_0_or_1_whatever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ampmon health` never exits with 2, which Docker reserves, also for an error of the system."""

    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("ampmon_server.client.client.ApiClient.check", full)
    monkeypatch.setenv("AMPMON_TOKEN", "t" * 43)
    code, _, err = typed("health", "--url", "http://127.0.0.1:1")
    assert (code, err) == (1, "ampmon health: [Errno 24] Too many open files\n")


def test_a_server_that_fails_logs_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of the system that names no file ends `ampmon serve` with 2, and its traceback is in the log."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("ampmon_server.cli.serve.ServerProcess.run", fail)
    monkeypatch.setattr("ampmon_server.http.logs.set_up", lambda _: None)
    monkeypatch.setattr("ampmon_server.cli.serve.raise_limit", lambda: None)
    before = os.umask(0o077)
    try:
        assert main(["serve", "--port", "0", "--data-dir", str(tmp_path)]) == 2
    finally:
        os.umask(before)
    assert "in fail" in caplog.text


def test_a_character_that_the_terminal_lacks_is_escaped(server: Server) -> None:
    """A terminal in another encoding gets an escape for a character that it cannot show."""
    out, err = in_bash("ampmon runs", server, PYTHONIOENCODING="latin-1")

    assert err == ""
    assert r"2\u2078 wide" in out


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://127.0.0.1:x", "http://127.0.0.1:99999", "http://", "https:///runs"],
)
@pytest.mark.parametrize("command", [["runs"], ["token", "list"], ["health"], ["export"]])
def test_an_address_that_is_none_is_named(command: list[str], url: str, tmp_path: Path) -> None:
    """A --url that is no address gives one line that shows what one looks like."""
    (tmp_path / "token").write_text("t" * 43)
    code, _, err = typed(*command, "--url", url, "--data-dir", tmp_path)
    (line,) = err.splitlines()
    assert code in {1, 2}
    assert f"{url.rstrip('/')} is not an address: write one such as http://127.0.0.1:8267" in line


def test_a_server_that_refuses_connections_is_said_in_words(tmp_path: Path) -> None:
    """An address without a server gives one line with the reason, and not with the name of an exception."""
    (tmp_path / "token").write_text("t" * 43)
    code, _, err = typed("runs", "--url", "http://127.0.0.1:1", "--data-dir", tmp_path)
    assert code == 2
    assert "http://127.0.0.1:1 does not answer (connection refused): " in err


@pytest.mark.parametrize("token", ["t" * 43 + "\r", "t" * 43 + "\nsecond", "tö" * 30])
@pytest.mark.parametrize("command", [["runs"], ["token", "list"], ["health"]])
def test_a_token_that_is_none_is_said(
    server: Server, command: list[str], token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that no server can have gives one line that says so, and not that the server does not answer."""
    monkeypatch.setenv("AMPMON_TOKEN", token)
    code, _, err = typed(*command, "--url", server.url)
    (line,) = err.splitlines()
    assert code in {1, 2}
    assert "the token has characters that are not allowed in a token" in line
    assert "check AMPMON_TOKEN or the token file" in line


@pytest.mark.parametrize(
    "command",
    [
        "runs \udcff",
        "rename latest \udcff",
        "tag latest \udcff",
        "token new \udcff",
        "token revoke \udcff",
    ],
)
def test_a_word_in_another_encoding_is_named(
    server: Server, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word that is not UTF-8 gives one line, and not that the server does not answer."""
    monkeypatch.setenv("AMPMON_TOKEN", server.token)
    code, _, err = typed(*command.split(), "--url", server.url)
    (line,) = err.splitlines()
    assert code == 2
    assert line.endswith(("'\\udcff' is not UTF-8", "There is no token '?' to revoke."))


@pytest.mark.parametrize("command", ["verify", "prune", "upgrade", "backup", "distribute"])
def test_a_database_url_that_is_none_is_named(command: str, tmp_path: Path) -> None:
    """A --database-url that is no URL gives one line that shows what one looks like."""
    code, _, err = typed("db", command, "--database-url", "nonsense", "--data-dir", tmp_path)
    (line,) = err.splitlines()
    assert code == 2
    assert line.startswith(f"ampmon db {command}: --database-url: write an SQLAlchemy URL, such as")


@pytest.mark.parametrize("command", ["show", "db verify", "demo"])
def test_an_unknown_option_is_reported_with_the_usage_of_its_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usage above the error lists the command's own options, not the commands."""
    with pytest.raises(SystemExit):
        main([*command.split(), "--jsno"])

    err = capsys.readouterr().err
    assert err.startswith(f"usage: ampmon {command} ")
    assert err.endswith(f"ampmon {command}: error: unrecognized arguments: --jsno\n")


@pytest.mark.parametrize("command", ["token", "alerts", "db"])
def test_a_missing_command_is_named_as_in_the_usage(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group of commands without one of them asks for what its usage shows."""
    with pytest.raises(SystemExit):
        main([command])

    usage, error = capsys.readouterr().err.splitlines()
    assert usage == f"usage: ampmon {command} [-h] COMMAND ..."
    assert error.endswith("the following arguments are required: COMMAND")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("show ''", "ampmon show: there is no run ''; the newest: 2⁸ wide ("),
        ("delete --yes ''", "ampmon delete: there is no run ''; the newest: 2⁸ wide ("),
        (
            "token new 'a b'",
            "ampmon token new: name needs 1 to 64 letters, digits or characters of",
        ),
        ("runs --url http://a..b", "does not answer (the host name cannot be resolved)"),
        ("serve --streams-per-token 0", "'0' is not a whole number of at least 1"),
        ("serve --workers 0", "'0' is not a whole number of at least 1"),
        ("serve --port 70000", "'70000' is not a port, 0 to 65535"),
        ("tail --every nan", "'nan' is not a number of at least 0"),
    ],
)
def test_an_argument_that_cannot_be_is_named(server: Server, line: str, words: str) -> None:
    """An empty, misspelt or impossible argument gives a line that says what is wrong with it, and exit code 2."""
    out, err = in_bash(f"ampmon {line}; echo $?", server)
    assert out == "2\n"
    assert words in err.splitlines()[-1]
    assert "Traceback" not in err
