"""`ampmon demo`: a real training, narrated in the terminal, stored on its server, ended by Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import expect

from ampmon_server.cli.parser import parser
from ampmon_server.demo import service, text
from ampmon_server.demo.session import has_display
from ampmon_server.demo.story import Row, Story
from scripts import Script
from serving import Server
from typed import typed
from waiting import wait_for
from web.reader import Reader


STEPS = 30
CLIMBED = 2.0**13
OTHER_RUN = "01900000-0000-7000-8000-000000000000"


class Demo:
    """A demo in its own process on a free port. `server` reads what it stored."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.server = Server(directory)
        self.directory = directory
        self._output = directory.with_suffix(".log")
        command = ["-m", "ampmon_server.cli", "demo"]
        command += ["--port", str(self.server.port), "--data-dir", str(directory), *options]
        with self._output.open("w") as output:
            environment = {**os.environ, "AMPMON_MODE": "online"}
            self.process = Script(*command, stdout=output, stderr=output, env=environment)

    @property
    def printed(self) -> str:
        return self._output.read_text()

    def wait_for(self, words: str) -> None:
        wait_for(lambda: words in self.printed or self.process.poll() is not None, words)
        assert words in self.printed, self.printed

    def interrupt(self) -> int:
        """Send Ctrl-C and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait()

    def end(self) -> None:
        """End it in any state, if possible by Ctrl-C, which also ends its server."""
        if self.process.poll() is None:
            try:
                self.interrupt()
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@pytest.fixture
def new_demo(tmp_path: Path, named_browser: Path) -> Iterator[Callable[..., Demo]]:
    """Starts a demo that reaches its ceiling within 30 updates."""
    started: list[Demo] = []

    def start(*options: str) -> Demo:
        started.append(Demo(tmp_path / "demo", "--growth-interval", "1", *options))
        return started[-1]

    yield start
    for one in started:
        one.end()


def assert_leads_in(handed: str, server: Server, reader: Reader) -> None:
    """Assert that the URL given to the browser has no code and signs the browser in."""
    assert "code=" not in handed
    reader.page.context.clear_cookies()
    reader.page.goto(handed)
    reader.page.wait_for_url(f"{server.url}/**")
    assert reader.page.context.cookies(server.url)


def test_the_demo_finds_the_ceiling_and_says_so(
    new_demo: Callable[..., Demo],
    named_browser: Path,
    new_reader: Callable[[Server], Reader],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The demo's scale grows from 1 to an overflow, which terminal, server and page show. The opened URL signs in.

    It reports to its own server, with that server's token, whatever the environment names.
    """
    monkeypatch.setenv("AMPMON_URL", "https://team.example")
    monkeypatch.setenv("AMPMON_TOKEN", "ampmon_" + "x" * 43)
    monkeypatch.setenv("AMPMON_RUN_ID", OTHER_RUN)
    running = new_demo("--steps", str(STEPS))
    running.wait_for("stays at")

    (run,) = running.server.get("/runs")["runs"]
    assert run["run_id"] != OTHER_RUN
    assert (run["project"], run["status"]) == ("demo", "finished")
    assert (run["updates"], run["lost_records"]) == (STEPS, 0)
    assert 1 <= run["skipped"] < STEPS / 2
    updates = running.server.get(f"/runs/{run['run_id']}/updates")
    assert updates["step"] == list(range(STEPS))
    assert updates["scale"][0] == 1.0
    assert max(updates["scale"]) > CLIMBED
    assert sum(updates["skipped"]) == run["skipped"]
    skips = running.server.get(f"/runs/{run['run_id']}/skips")["skips"]
    assert skips[-1]["culprits"]
    assert re.search(
        r"scale 1 = 2⁰: \d+(\.\d+)? % of gradient values are subnormal", running.printed
    )
    assert f"step {skips[-1]['step']}: first overflow" in running.printed
    assert f"First to overflow: {skips[-1]['culprits'][0]['parameter']}." in running.printed

    reader = new_reader(running.server)
    reader.ignore_page_errors("asked for file:")
    assert_leads_in(named_browser.read_text().strip(), running.server, reader)
    reader.open(f"#/runs/{run['run_id']}")
    expect(reader.page.locator(".description")).to_contain_text("underflow disappears")
    reader.wait("the charts of a real training", lambda: reader.newest() == STEPS - 1)
    reader.close()

    assert running.interrupt() == 0
    assert "Traceback" not in running.printed
    assert not running.server.answers()


@pytest.mark.parametrize("named", [True, False])
def test_a_server_that_is_there_is_used_and_left_alone(server: Server, named: bool) -> None:
    """If the data directory already has a server, at any port, the demo uses it and does not end it."""
    port = server.port if named else None
    found = service.find_or_start(server.directory, port, lambda: False)

    assert (found.url, found.own) == (server.url, False)
    found.stop()
    assert server.answers()
    assert found.login_link().startswith(f"{server.url}/login?code=")


def test_the_server_of_another_directory_is_left_alone(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    """If another directory's server runs at the address that a killed server left, the demo starts one of its own."""
    killed = new_server(tmp_path / "killed")
    killed.kill()
    new_server(tmp_path / "another", port=killed.port)
    found = service.find_or_start(killed.directory, None, lambda: False)

    assert (found.url != killed.url, found.own) == (True, True)
    found.stop()


@pytest.mark.rare
def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    """If the port is in use, a one-line error names it."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = typed("demo", "--no-browser", "--port", str(port), "--data-dir", tmp_path)

    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith("ampmon demo: ")
    assert str(port) in done.err


def test_without_torch_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch the demo names the extra to install and exits with 2."""
    monkeypatch.setitem(sys.modules, "torch", None)
    done = typed("demo")

    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"pip install '{Path(__file__).parents[1]}[torch]'" in done.err


@pytest.mark.parametrize("options", [["--steps", "0"], ["--port", "65536"], ["--steps", "x"]])
def test_options_that_cannot_be_are_refused(options: list[str]) -> None:
    """Zero steps, an invalid number and a port above 65535 are rejected."""
    with pytest.raises(SystemExit):
        parser().parse_args(["demo", *options])


def test_the_story_tells_each_thing_once() -> None:
    """The story reports shares as the scale grows, the end of underflow and the first skips, and then nothing more."""
    updates = [
        Row(0, 1.0, 1.0, False, 0.156),
        Row(1, 1.0, 2.0, False, 0.15),
        Row(2, 2.0, 2.0, False, None),
        Row(3, 2.0, 4.0, False, 0.08),
        Row(4, 4.0, 8.0, False, 0.0001),
        Row(5, 8.0, 16.0, False, 0.0),
        Row(6, 16.0, 8.0, True, 0.0),
        *(Row(step, 8.0, 4.0, True, None) for step in range(7, 20)),
    ]
    story = Story()
    lines = [words for row in updates for words in story.lines_for(row, "head.weight")]

    beginnings = [words.split(":")[0].split(",")[0].split(".")[0] for words in lines]
    assert beginnings == [
        "scale 1 = 2⁰",
        "These values are below 2⁻¹⁴",
        "scale 2 = 2¹",
        "scale 4 = 2²",
        "Underflow is almost gone",
        "step 6",
        "The step was skipped",
        "step 7",
        "step 8",
        "The ceiling is known",
    ]
    assert "16 %" in lines[0]
    assert "First to overflow: head.weight." in lines[5]
    assert "backs off to 8 = 2³" in lines[6]


def test_the_text_is_the_librarys_source(tmp_path: Path) -> None:
    """The text is every printable character of every module in order, and a batch's targets are the next characters."""
    (tmp_path / "b.py").write_text("y = 'ü'\n", encoding="utf-8")
    (tmp_path / "a.py").write_text("x = 1\n", encoding="utf-8")
    loaded = text.load("cpu", tmp_path)

    assert "".join(text.ALPHABET[index] for index in loaded.characters) == "x = 1\n\ny = ''\n"
    characters, following = loaded.batch(64, 5)
    assert characters.shape == following.shape == (64, 5)
    assert torch.equal(characters[:, 1:], following[:, :-1])
    row = loaded.characters.long()
    windows = {tuple(row[start : start + 6].tolist()) for start in range(len(row) - 5)}
    assert {
        (*c, f[-1]) for c, f in zip(characters.tolist(), following.tolist(), strict=True)
    } == windows


def test_a_library_without_source_is_said(tmp_path: Path) -> None:
    """A library without Python source raises an error that says so."""
    with pytest.raises(FileNotFoundError, match="no Python source"):
        text.load("cpu", tmp_path)


def test_a_browser_is_opened_only_where_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Linux a browser is opened only if there is a display."""
    monkeypatch.setattr(sys, "platform", "linux")
    assert not has_display({})
    assert has_display({"DISPLAY": ":0"})
    assert has_display({"WAYLAND_DISPLAY": "wayland-0"})
