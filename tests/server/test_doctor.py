"""`ampmon doctor`: diagnoses of real trainings, from a server or a data directory, and their output."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import ampmon
from ampmon.spool import frame
from ampmon.spool.state import Cursor
from ampmon.wire import Finding
from ampmon_server.cli import main
from ampmon_server.cli.doctor.printing import Paper, show_replay
from ampmon_server.client.answers import (
    Diagnosed,
    Run,
    SettingAnswer,
    Simulated,
    SimulationAnswer,
    SkipsAnswer,
)
from attempts import Attempt
from doubles import MemoryTransport
from draining import drain
from serving import Server
from threaded_server import ThreadedServer
from typed import Done, typed
from waiting import wait_for


CODES = {None: 0, "notice": 10, "warning": 20, "critical": 30}
TO_BE_COPIED = ("    ", "  http://")


def doctor(*arguments: str | Path) -> Done:
    """Run `ampmon doctor` in this process, without a terminal."""
    return typed("doctor", *arguments)


def stored(directory: Path) -> list[tuple[int, int]]:
    """List the runs of a data directory without a server: the records of each, and those lost."""
    done = typed("runs", "--json", "--data-dir", directory)
    if done.code == 2:
        assert "it holds no runs" in done.err
        return []
    return [(run["records"], run["lost_records"]) for run in json.loads(done.out)["runs"]]


def train(directory: Path, name: str, *, sick: bool = False, updates: int = 120) -> str:
    """Record a training offline and return its run id. A sick one gets NaN in every third batch after the 50th."""
    run_id = ampmon.init("tests", name, dir=directory, mode="offline")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0**10, model=model)
    for update in range(updates):
        inputs, targets = torch.randn(8, 16), torch.randint(0, 4, (8,))
        if sick and update > 50 and update % 3 == 2:
            inputs[0, 0] = float("nan")
        with torch.autocast("cpu", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    ampmon.finish()
    return str(run_id)


@dataclass
class Ward:
    """A server with runs, and the options that reach it."""

    server: ThreadedServer
    runs: dict[str, list[str]]

    @property
    def way(self) -> tuple[str | Path, ...]:
        return "--url", self.server.url, "--data-dir", self.server.directory

    def get(self, path: str) -> bytes:
        answer = self.server.request("GET", f"/api/v1{path}")
        assert answer.status == 200, answer.data
        return answer.data


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    """A data directory with unsent trainings: two of one name, a healthy one and a sick one."""
    directory = tmp_path_factory.mktemp("recorded") / "ampmon"
    runs = {
        "twice": [train(directory, "twice", updates=5) for _ in range(2)],
        "healthy": [train(directory, "healthy")],
        "sick": [train(directory, "sick", sick=True)],
    }
    return directory, runs


@pytest.fixture(scope="module")
def ward(
    recorded: tuple[Path, dict[str, list[str]]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ward]:
    """A server that has the recorded trainings."""
    directory, runs = recorded
    server = ThreadedServer(tmp_path_factory.mktemp("ward") / "ampmon")
    ward = Ward(server, runs)
    copy = server.directory / "copy"
    shutil.copytree(directory, copy)
    where = ["--url", server.url, "--token-file", str(server.token_file)]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["sync", str(copy), *where]) == 0
    yield ward
    server.close()


def test_a_healthy_run_is_said_to_be_healthy(ward: Ward) -> None:
    """A run without findings prints `healthy` and exits with 0 even with `--fail-on notice`."""
    done = doctor("healthy", "--fail-on", "notice", *ward.way)

    assert (done.code, done.err) == (0, "")
    assert "✓  healthy" in done.out
    assert "tests, finished, 120 updates" in done.out


def test_each_finding_is_shown_with_its_reason_and_its_fix(ward: Ward) -> None:
    """Each finding shows severity, title, explanation, fix and links. The exit code is the worst severity's."""
    [run_id] = ward.runs["sick"]
    answer = json.loads(ward.get(f"/runs/{run_id}/diagnosis"))
    done = doctor("sick", *ward.way)
    printed = " ".join(done.out.split())

    assert answer["findings"]
    assert " ".join(answer["training"]["sentence"].split()) in printed
    assert done.code == CODES[answer["severity"]] == 30
    for finding in answer["findings"]:
        for part in ("severity", "title", "explanation", "fix"):
            assert " ".join(finding[part].split()) in printed
        assert f"{ward.server.url}/findings/{finding['rule']}" in printed
    assert f"{ward.server.url}/#/runs/{run_id}?start=" in printed


def test_it_fits_a_terminal_of_80_columns(ward: Ward) -> None:
    """Lines fit 80 columns, except code and URLs, and have no trailing blanks."""
    lines = doctor("sick", *ward.way).out.splitlines()

    assert [each for each in lines if len(each) > 80 and not each.startswith(TO_BE_COPIED)] == []
    assert [each for each in lines if each != each.rstrip()] == []


def test_a_replay_is_shown_as_a_table(ward: Ward) -> None:
    """A setting prints a table of recorded and simulated skips and the recommendation, in 80 columns."""
    [run_id] = ward.runs["healthy"]
    answer = json.loads(ward.get(f"/runs/{run_id}/simulate?init_scale=512&policy=torch"))
    done = doctor("healthy", "--init-scale", "512", "--policy", "torch", *ward.way)
    replay = done.out[done.out.index("Replayed: all 120 updates") :]
    was, asked = (answer[each]["skips"] for each in ("recorded", "simulated"))

    assert done.code == 0
    assert re.search(rf"^as recorded +{was['expected']} ", replay, re.MULTILINE)
    assert asked["known"]
    assert re.search(rf"^init_scale=2⁹ +{round(asked['expected'])}\b", replay, re.MULTILINE)
    assert " ".join(answer["recommended"]["words"].split()) in " ".join(replay.split())
    assert [each for each in replay.splitlines() if len(each) > 80] == []


def test_a_replay_that_a_run_cannot_tell_is_said_to_be_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range of skips too wide to decide is inconclusive. Of the recommendation, only its words say so."""
    monkeypatch.setenv("COLUMNS", "100")  # no cell is wrapped
    policy = SettingAnswer("torch", 65536.0, 2.0, 0.5, 2000)
    was = SimulationAnswer(policy=policy, skips=SkipsAnswer(3, 3, 3))
    other = SimulationAnswer(policy=policy, skips=SkipsAnswer(2, 40.0, 90, known=False))
    best = SimulationAnswer(
        policy=policy,
        skips=SkipsAnswer(0, 20.0, 40, known=False),
        words="Inconclusive: 0 to 40 skips instead of 3.",
        code="scaler = torch.amp.GradScaler()",
    )
    simulated = Simulated(
        first=0, last=99, updates=100, whole=True, recorded=was, simulated=other, recommended=best
    )
    show_replay(Paper(RUN, None), simulated, asked=True)

    printed = " ".join(capsys.readouterr().out.split())
    assert "2 to 90: inconclusive" in printed
    assert "recommended: the same 0 to 40 not sampled" in printed


def test_a_replay_is_json_where_that_is_asked_for(ward: Ward) -> None:
    """--simulate --json prints the body of GET /simulate, with the diagnosis's exit code."""
    [run_id] = ward.runs["sick"]
    done = doctor("sick", "--simulate", "--json", *ward.way)

    assert done.out.encode() == ward.get(f"/runs/{run_id}/simulate") + b"\n"
    assert done.code == 30


def test_a_setting_that_cannot_be_is_named(ward: Ward) -> None:
    """An invalid growth factor exits with 2 and the server's message."""
    done = doctor("sick", "--growth-factor", "0.5", *ward.way)

    assert (done.code, done.out) == (2, "")
    assert "more than 1" in done.err


def test_json_is_the_answer_as_it_is(ward: Ward) -> None:
    """--json prints the body of GET /diagnosis and a newline, with the same exit code."""
    [run_id] = ward.runs["sick"]

    def agree() -> bool:
        done = doctor(run_id, "--json", *ward.way)
        assert done.code == 30
        return done.out.encode() == ward.get(f"/runs/{run_id}/diagnosis") + b"\n"

    # Background judging between the two requests may advance the run's version.
    wait_for(agree)


@pytest.mark.parametrize("way", ["id", "beginning", "name", "latest", "nothing"])
def test_a_run_is_found_by_any_of_its_names(ward: Ward, way: str) -> None:
    """A run is found by id, unique id prefix, name, `latest`, or no argument."""
    [run_id] = ward.runs["sick"]
    beginning = next(
        run_id[:length]
        for length in range(4, 37)
        if sum(each.startswith(run_id[:length]) for ids in ward.runs.values() for each in ids) == 1
    )
    named = {"id": [run_id], "beginning": [beginning], "name": ["sick"], "latest": ["latest"]}

    assert run_id in doctor(*named.get(way, []), *ward.way).out


def test_of_several_runs_with_one_name_the_newest_is_meant(ward: Ward) -> None:
    """A name of two runs means the newer one."""
    assert ward.runs["twice"][1] in doctor("twice", *ward.way).out


def test_a_run_that_is_not_there_is_answered_with_those_that_are_near(ward: Ward) -> None:
    """An unknown name or id, or an ambiguous prefix, exits with 2 and suggests runs."""
    misspelt = doctor("helthy", *ward.way)
    unknown = doctor("00000000-0000-0000-0000-000000000000", *ward.way)
    first, second = ward.runs["twice"]
    shared = next(at for at in range(36) if first[at] != second[at])
    common = doctor(first[:shared], *ward.way)

    assert [each.code for each in (misspelt, unknown, common)] == [2, 2, 2]
    assert f"healthy ({ward.runs['healthy'][0]})" in misspelt.err
    assert "there is no run '00000000-" in unknown.err
    assert ward.runs["sick"][0] in unknown.err
    assert ward.runs["twice"][0] in common.err


def test_a_token_that_is_not_accepted_is_said_to_be_none(ward: Ward, tmp_path: Path) -> None:
    """A wrong token exits with 2 and names the options for the right one."""
    (tmp_path / "token").write_text("0" * 43)
    done = doctor("--url", ward.server.url, "--token-file", tmp_path / "token")

    assert (done.code, done.out) == (2, "")
    assert "does not accept this token: pass its --data-dir or --token-file" in done.err


def test_where_no_server_runs_it_asks_the_database(
    recorded: tuple[Path, dict[str, list[str]]], tmp_path: Path
) -> None:
    """Without a server, doctor stores unsent trainings once, diagnoses them and keeps their spools."""
    directory, runs = tmp_path / "ampmon", recorded[1]
    shutil.copytree(recorded[0], directory)
    spools = sorted(path.name for path in (directory / "spool").iterdir())
    done = doctor("sick", "--data-dir", directory)
    again = doctor("sick", "--json", "--data-dir", directory)

    assert done.code == again.code == 30
    assert "no server runs" in done.err
    assert " unsent records\n" in done.err
    assert ".md, and the chart" in " ".join(done.out.split())
    assert json.loads(again.out)["run_id"] == runs["sick"][0]
    assert sorted(path.name for path in (directory / "spool").iterdir()) == spools


def test_where_there_is_nothing_it_makes_nothing(tmp_path: Path) -> None:
    """Without runs and a server, the directory stays empty, and the error says what to pass."""
    done = doctor("--data-dir", tmp_path)

    assert (done.code, done.out) == (2, "")
    assert "pass a --data-dir, or a server's --url" in done.err
    assert list(tmp_path.iterdir()) == []


def test_records_of_a_newer_writer_hide_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spool that a newer sender has sent in part is left to it. The records of other runs are imported."""
    other = Attempt(tmp_path)
    other.events(10)
    with monkeypatch.context() as patched:
        patched.setattr(frame, "VERSION", frame.VERSION + 1)
        newer = Attempt(tmp_path)
        newer.events(10)
    Cursor(segment=0, offset=1).write(newer.spool.path, durable=False)
    for attempt in (other, newer):
        attempt.spool.close()

    assert stored(tmp_path) == [(10, 0)]


def test_records_that_another_server_has_in_part_are_left_to_it(tmp_path: Path) -> None:
    """The rest of a run that a named server has begun is no run with losses. If the run is known here, it is whole."""
    begun = Attempt(tmp_path / "begun")
    begun.events(10)
    first = stored(begun.directory)
    left = Attempt(tmp_path / "left")
    left.events(10)
    for attempt in (begun, left):
        server = MemoryTransport()
        assert drain(attempt.directory, lambda _, server=server: server).sent == 10
        attempt.events(10)
        attempt.spool.sync()

    assert (first, stored(begun.directory)) == ([(10, 0)], [(20, 0)])
    assert stored(left.directory) == []
    assert not (left.directory / "server").exists()
    for attempt in (begun, left):
        attempt.spool.close()


def test_a_server_that_runs_is_found_by_its_directory(
    recorded: tuple[Path, dict[str, list[str]]], tmp_path: Path, new_server: Callable[..., Server]
) -> None:
    """Doctor asks the server that runs on the data directory, or the database if none does."""
    directory = tmp_path / "ampmon"
    shutil.copytree(recorded[0], directory)
    doctor("--data-dir", directory)
    shutil.rmtree(directory / "spool")
    server = new_server(directory)
    running = doctor("sick", "--data-dir", directory)
    server.kill()
    killed = doctor("sick", "--data-dir", directory)

    assert (running.code, running.err) == (30, "")
    assert server.url in running.out
    assert killed.code == 30
    assert "no server runs" in killed.err


def on_terminal(*arguments: str | Path, **environment: str) -> str:
    """Run the command and return what it writes to a terminal."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "ampmon_server.cli", "doctor", *map(str, arguments)]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm-256color", **environment},
    ):
        os.close(slave)
        written = b""
        with contextlib.suppress(OSError):  # Linux raises at the end of a closed terminal
            while chunk := os.read(master, 65536):
                written += chunk
    os.close(master)
    return written.decode()


def test_colour_is_for_terminals_that_want_it(ward: Ward) -> None:
    """Terminals get colour unless NO_COLOR is set. The text, with its severity words, is the same."""
    coloured = on_terminal("sick", *ward.way)
    plain = on_terminal("sick", *ward.way, NO_COLOR="1")

    assert re.search(r"\x1b\[[\d;]*31m", coloured)
    assert not re.search(r"\x1b\[[\d;]*3[0-9]", plain)
    bare = [re.sub(r"\x1b\[[\d;]*m", "", each) for each in (coloured, plain)]
    assert bare[0] == bare[1]
    assert "■ critical" in bare[0]


RUN = Run(run_id="run", project="p", name="n", status="running", started=0, updates=1, streams=())


@pytest.mark.parametrize(
    "part", ["rule", "title", "explanation", "fix", "second", "parameters", "scaler"]
)
def test_words_of_a_run_cannot_command_the_terminal(
    part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control characters from a run never reach the terminal, and rich markup is printed literally."""
    evil = "a\x1b]0;owned\x07b\x9b31m[red]"
    words: dict[str, Any] = {"rule": "r", "title": "t", "explanation": "e", "fix": "f = 1"}
    words[part] = (evil,) if part == "parameters" else evil
    finding = Finding(severity="notice", **words)
    Paper(RUN, None).show(Diagnosed(verdict="v", severity="notice", findings=(finding,)))
    out = capsys.readouterr().out

    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", out)
    assert "[red]" in out


def test_what_was_not_judged_is_not_said_to_be_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    """A run without updates is not called healthy, and rules that failed are named."""
    run = msgspec.structs.replace(RUN, updates=0)
    Paper(run, None).show(
        Diagnosed(verdict="healthy", severity=None, findings=(), failed=("bf16", "silent"))
    )
    out = " ".join(capsys.readouterr().out.split())

    assert "healthy" not in out
    assert "No steps recorded" in out
    assert "2 rules could not judge this run (bf16, silent)" in out


@pytest.mark.parametrize("status", ["running", "silent", "finished", "crashed"])
def test_only_a_run_that_trains_on_is_asked_to_stop(
    status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The advice to stop is given only while the run is running or silent."""
    finding = Finding(rule="r", severity="critical", title="t", explanation="e", stop=True)
    run = msgspec.structs.replace(RUN, status=status)
    Paper(run, None).show(Diagnosed(verdict="t", severity="critical", findings=(finding,)))

    assert ("Stop this run" in capsys.readouterr().out) == (status in {"running", "silent"})


@pytest.mark.parametrize("fail_on", ["notice", "warning", "critical"])
@pytest.mark.parametrize("severity", [None, "notice", "warning", "critical"])
def test_the_exit_code_tells_the_severity_from_which_it_is_to_fail(
    severity: str | None, fail_on: str
) -> None:
    """Below --fail-on the exit code is 0, otherwise the severity's own code."""
    from ampmon_server.cli.doctor import exit_code

    ranks = [None, "notice", "warning", "critical"]
    expected = CODES[severity] if ranks.index(severity) >= ranks.index(fail_on) else 0

    assert exit_code(msgspec.convert(severity, type=str | None), fail_on) == expected  # type: ignore[arg-type]
