"""Commands on runs, with and without a running server, at 80 columns."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest

import ampmon
from ampmon_server.cli import main
from ampmon_server.cli.parser import parser
from ampmon_server.cli.terminal.answers import (
    LoggedAnswer,
    duration,
    loss_among,
    overhead_of,
    scale_now,
    underflow_of,
    value_of,
)
from ampmon_server.client.answers import Run
from ampmon_server.client.sketch import Sketch, sketch
from posted import PostedRun
from serving import Server
from typed import Done, typed
from waiting import wait_for


@dataclass
class Shell:
    """A server with two runs in one project, and one with several skips in another."""

    server: Server
    runs: dict[str, PostedRun]

    def typed(self, *words: str | Path) -> Done:
        return typed(*words, "--data-dir", self.server.directory, "--url", self.server.url)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with Server(tmp_path_factory.mktemp("terminal") / "ampmon") as server:
        runs = {name: PostedRun(server, name) for name in ("first", "second")}
        runs["sick"] = PostedRun(server, "sick", project="other")
        for run in runs.values():
            run.updates(20)
        for _ in range(8):
            runs["sick"].updates(skipped=True)
            runs["sick"].updates(5)
        yield Shell(server, runs)


untouched = shell  # another one, in which no test makes runs


def test_ampmon_alone_shows_three_commands_that_are_there() -> None:
    """Without a command, `ampmon` prints three existing commands, in at most 80 columns."""
    done = typed()
    shown = re.findall(r"^  ampmon (\w+)", done.out, re.MULTILINE)

    assert done.code == 0
    assert len(shown) == 3
    assert all(f"    {each} " in parser().format_help() for each in shown)
    assert max(map(len, done.out.splitlines())) <= 80


def test_every_command_has_its_function() -> None:
    """Each command and subcommand says what it does, and its function exists, except for `ampmon run`."""
    left, functions = [parser()], {}
    while left:
        command = left.pop()
        below = [each for each in command._actions if isinstance(each, argparse._SubParsersAction)]
        left += [each for action in below for each in action.choices.values()]
        if not below:
            functions[command.prog] = command.get_default("function")
        assert command.description, f"{command.prog} --help does not say what it does"

    assert functions.pop("ampmon run") is None
    assert len(functions) > 25
    assert all(callable(resolve_name(name)) for name in functions.values())


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    """`ampmon --version` prints the version of the package."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])

    assert ended.value.code == 0
    assert capsys.readouterr().out == f"ampmon {ampmon.__version__}\n"


def test_runs_are_listed_newest_first_and_filtered(untouched: Shell) -> None:
    """`ampmon runs` lists the runs that match the filters, newest first, with their scale."""
    lines = untouched.typed("runs").out.splitlines()

    assert [line.split()[0] for line in lines[1:]] == ["other/sick", "tests/second", "tests/first"]
    assert " 2⁸ " in lines[1]
    assert untouched.typed("runs", "--project", "tests").out.split("\n")[1].startswith("second ")
    assert "sick" in untouched.typed("runs", "SIC").out
    assert untouched.typed("runs", "--status", "crashed").out == "No run matches.\n"
    assert untouched.typed("runs", "--limit", "1").out.endswith("2 more: ampmon runs --limit 3\n")


def test_the_list_as_json_is_the_answer_as_it_is(untouched: Shell) -> None:
    """`ampmon runs --json` prints the server's answer."""
    done = untouched.typed("runs", "--json", "--limit", "2")
    assert [each["name"] for each in json.loads(done.out)["runs"]] == ["sick", "second"]


def test_a_run_is_shown_with_its_numbers_and_its_fixes(shell: Shell) -> None:
    """`ampmon show` prints scale, skips, underflow and findings. Only code and links may exceed 80 columns."""
    done = shell.typed("show", "sick")
    out = " ".join(done.out.replace("\u202f", " ").split())

    assert done.code == 0
    assert "loss scale 2⁸ (between 2⁸ and 2¹⁶)" in out
    assert "skipped 8 of 68 updates (11.8 %)" in out
    assert "subnormal" in out
    assert "■ critical" in out
    uncut = ("    ", "  http://")
    assert [
        line for line in done.out.splitlines() if len(line) > 80 and not line.startswith(uncut)
    ] == []


def _summary(**fields: Any) -> Run:
    return Run(run_id="", project="", name="", status="", started=0, updates=9, **fields)


def test_a_scale_that_just_grew_is_the_greatest() -> None:
    """The extremes of the scale include the newest one, at which no update was made yet."""
    shown = scale_now(_summary(scale=4096.0), Sketch(low=8.0, high=11.0))
    assert shown == "2¹² (between 2⁸ and 2¹²)"


def test_a_scale_that_fell_to_zero_is_the_least() -> None:
    """A scale of 0 has no logarithm, so it is drawn above its place. A scale of inf is drawn below."""
    shown = scale_now(_summary(scale=0.0), Sketch(low=-128.0, high=16.0))
    assert shown == "0 (between 0 and 2¹⁶)"
    assert scale_now(_summary(scale=4.0), Sketch(low=-128.0, high=2.0)) == "2² (between 0 and 2²)"
    endless = scale_now(_summary(scale_kind="inf"), Sketch(low=16.0, high=128.0))
    assert endless == "∞ (between 2¹⁶ and ∞)"


@pytest.mark.parametrize(("samples", "word"), [(0, "sampled"), (14, "fp16-representable")])
def test_samples_that_say_nothing_of_fp16_are_no_missing_samples(samples: int, word: str) -> None:
    """Where no parameter is fp16-representable, as after clipping, the samples have no shares of underflow."""
    assert underflow_of(_summary(sampled_updates=samples)).endswith(word)


def test_an_overhead_beyond_the_budget_is_named() -> None:
    """The line says what the monitor costs, and names its budget if that is exceeded."""
    costs = {"overhead": 0.038, "budget": 0.01}
    within = overhead_of(_summary(**costs))
    assert within == "3.8\u202f% of the training time"
    over = overhead_of(_summary(**costs, over_budget=True))
    assert over == f"{within}, over the budget of 1\u202f%"


def test_a_sketch_of_the_scale_fits_a_narrow_terminal(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 40 columns the line of the scale and its ticks have one line each."""
    monkeypatch.setenv("COLUMNS", "40")
    lines = shell.typed("show", "sick").out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("loss scale"))
    sketch = [line.strip() for line in lines[at + 1 : at + 3]]
    assert set(sketch[0]) <= set("▁▂▃▄▅▆▇█")
    assert set(sketch[1]) <= set("╵ ")
    assert lines[at + 3].startswith("skipped")


def test_a_run_as_json_has_its_diagnosis(shell: Shell) -> None:
    """`ampmon show --json` prints an object with the run and its diagnosis."""
    answer = json.loads(shell.typed("show", "sick", "--json").out)

    assert answer["run"]["skipped"] == 8
    assert answer["diagnosis"]["severity"] == "critical"


@pytest.mark.parametrize("command", ["runs", "show"])
def test_json_needs_no_package_of_the_server(shell: Shell, tmp_path: Path, command: str) -> None:
    """Where only the training's packages are installed, JSON is printed; the rest needs rich, which a line names."""
    (tmp_path / "rich.py").write_text("raise ModuleNotFoundError('No rich', name='rich')")
    where = ["--data-dir", str(shell.server.directory), "--url", shell.server.url]
    read, drawn = (
        subprocess.run(
            [sys.executable, "-m", "ampmon_server.cli", command, *where, *options],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
            capture_output=True,
            text=True,
            check=False,
        )
        for options in (["--json"], [])
    )

    assert (read.returncode, read.stderr) == (0, "")
    assert json.loads(read.stdout)
    assert drawn.returncode == 2
    assert drawn.stderr.endswith("(rich is missing)\n")


@pytest.mark.parametrize("command", ["runs", "show"])
def test_what_cannot_be_answered_names_what_helps(command: str, tmp_path: Path) -> None:
    """Without a server and without runs, the command exits with 2 and names the missing option."""
    done = typed(command, "--data-dir", tmp_path)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"ampmon {command}: no server runs on ")
    assert "pass a --data-dir, or a server's --url" in done.err


# -- changes to runs -------------------------------------------------------------------------------------------------


def test_a_run_is_renamed_and_tagged(shell: Shell) -> None:
    """A run's name is replaced; its tags are added and removed individually, and printed."""
    run = PostedRun(shell.server, "to be changed", project="changing")
    renamed = shell.typed("rename", "to be changed", "other name")
    added = shell.typed("tag", "other name", "a", "b")
    removed = shell.typed("tag", "other name", "c", "--remove", "a")
    changed = shell.server.get(run.path)

    assert renamed.out == f"renamed to be changed ({run.run_id}) to other name\n"
    assert added.out.endswith("): a, b\n")
    assert removed.out.endswith("): b, c\n")
    assert (changed["name"], changed["tags"]) == ("other name", ["b", "c"])


def test_an_archived_run_is_found_and_brought_back(shell: Shell) -> None:
    """An archived run leaves the list, can still be shown by name, and returns with --undo."""
    PostedRun(shell.server, "old", project="archiving").updates()

    def listed() -> bool:
        return "old" in shell.typed("runs", "--project", "archiving").out

    assert listed()
    assert shell.typed("archive", "old").code == 0
    assert not listed()
    assert "old" in shell.typed("runs", "--archived").out
    assert shell.typed("show", "old").code == 0
    assert shell.typed("archive", "--undo", "old").code == 0
    assert listed()


def test_a_list_without_runs_says_whether_some_are_archived(tmp_path: Path) -> None:
    """Without runs, the list says how to start one. With archived runs only, it says how to list them."""
    with Server(tmp_path / "ampmon") as server:
        there = Shell(server, {})
        assert there.typed("runs").out == "No runs yet. Start one: ampmon run train.py\n"
        PostedRun(server, "old").updates()
        assert there.typed("archive", "old").code == 0
        words = "All runs are archived (1). List them: ampmon runs --archived\n"
        assert there.typed("runs").out == words
        assert json.loads(there.typed("runs", "--json").out)["runs"] == []


def test_a_run_is_deleted_only_where_that_is_meant(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal, deletion needs --yes. If one named run is unknown, none is deleted."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    runs = [PostedRun(shell.server, name, project="deleting") for name in ("bad", "worse")]
    asked = shell.typed("delete", "bad")
    unknown = shell.typed("delete", "--yes", "bad", "wrose")
    left = shell.server.get("/runs?project=deleting")["total"]
    done = shell.typed("delete", "--yes", "bad", "worse", "bad")

    assert (asked.code, unknown.code, left) == (2, 2, 2)
    assert "pass --yes" in asked.err
    assert "similar: worse" in unknown.err
    assert done.out.splitlines() == [
        f"deleted {n} ({r.run_id})" for n, r in zip(("bad", "worse"), runs, strict=True)
    ]
    assert shell.server.get("/runs?project=deleting")["total"] == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ampmon ta", {"tail", "tag"}),
        ("ampmon runs --stat", {"--status"}),
        ("ampmon runs --status cr", {"crashed"}),
        ("ampmon run --no-serve train", {"train.py"}),
        ("ampmon show --data-dir tr", {"train.py"}),
    ],
)
def test_bash_completes_what_may_be_typed(line: str, offered: set[str], tmp_path: Path) -> None:
    """The printed bash script completes commands, flags, their values and files."""
    (tmp_path / "train.py").touch()
    script = (
        f"{typed('completion', 'bash').out}\nCOMP_WORDS=({line}); COMP_CWORD={line.count(' ')}\n"
    )
    ask = f'{script}_shtab_ampmon 2>/dev/null; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        ["bash", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert set(done.stdout.split()) == offered


def test_each_shell_has_a_script() -> None:
    """zsh and fish each get their own script."""
    assert typed("completion", "zsh").out.startswith("#compdef ampmon")
    assert "complete -c ampmon" in typed("completion", "fish").out


# -- the sketch of a scale -------------------------------------------------------------------------------------------


def chart(x: list[int], y: list[float], skips: tuple[int, ...] = ()) -> bytes:
    """A chart of a scale, as the server answers it."""

    def array(values: Any, kind: str) -> dict[str, str]:
        return {"dtype": kind, "bdata": b64encode(np.array(values, f"<{kind}").tobytes()).decode()}

    traces = [{"name": "loss scale", "x": array(x, "i4"), "y": array(y, "f8")}]
    marks = [{"name": "skips", "x": array(skips, "i4")}] if skips else []
    return json.dumps({"data": [*traces, *marks]}).encode()


def test_a_sketch_rises_and_falls_with_the_scale() -> None:
    """Each step is a block as high as its scale, with a tick below skips. A constant scale is level."""
    risen = sketch(chart([0, 1, 2, 3], [8.0, 10.0, 12.0, 8.0], (2,)), 10)

    assert risen == Sketch("▁▅█▁", "  ╵ ", 8.0, 12.0)
    assert len(set(sketch(chart([0, 1, 2], [16.0] * 3), 10).line)) == 1


def test_a_column_of_a_sketch_has_its_lowest_scale() -> None:
    """A column with several steps shows the lowest scale. A scale lasts until it changes; missing steps stay blank."""
    dip = [16.0] * 50 + [12.0] + [16.0] * 49
    assert sketch(chart([*range(100)], dip), 10).line == "█████▁████"
    assert sketch(chart([0, 60, 99], [12.0, 16.0, 16.0]), 10).line == "▁▁▁▁▁▁████"
    assert sketch(chart([0, 50, 60, 99], [12.0, np.nan, 12.0, 12.0]), 10).line.count(" ") == 1


def test_there_is_no_sketch_of_nothing() -> None:
    """A chart without a line, or without a finite scale, gives an empty sketch."""
    assert sketch(b'{"data": []}', 10) == Sketch()
    assert sketch(chart([0], [np.nan]), 10) == Sketch()


# -- words -----------------------------------------------------------------------------------------------------------


def test_the_training_loss_is_found_among_what_is_logged() -> None:
    """The training loss is the value named loss, else a training value before a validation value, else none."""

    def chosen(*names: str) -> str | None:
        found = loss_among([LoggedAnswer(name) for name in names])
        return found and found.name

    assert chosen("lr", "loss", "train/loss") == "loss"
    assert chosen("val/loss_epoch", "train/loss") == "train/loss"
    assert chosen("lr") is None
    assert value_of(LoggedAnswer("loss", None, "nan")) == "nan"


def test_durations_are_reported_in_their_largest_unit() -> None:
    """Durations are rounded and have one unit."""
    words = [duration(each) for each in (0, 59, 90 * 60, 86400 * 12)]
    assert [each.replace("\u202f", " ") for each in words] == ["0 s", "59 s", "2 h", "12 d"]


def test_a_run_without_steps_is_not_called_healthy(shell: Shell) -> None:
    """In the list, a run that ended before its first step has a dash instead of the mark of a healthy run."""
    run = PostedRun(shell.server, "ended", project="endings")
    run.event("finish")
    wait_for(lambda: shell.server.get(run.path)["verdict"])
    (_, line) = shell.typed("runs", "--project", "endings").out.splitlines()
    assert line.split()[-1] == "–"
