"""`ampmon doctor MESSAGE`: an entry of the error index in the terminal, or a run of that name."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ampmon
from ampmon_server.cli.doctor.explaining import show
from ampmon_server.pages.messages import PARTS, MessageEntry, entries
from pasted import PASTED, UNRELATED
from typed import Done, typed


def doctor(*arguments: str, stdin: str | io.TextIOWrapper = "") -> Done:
    """Run `ampmon doctor` in this process. Its output is not a terminal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(stdin) if isinstance(stdin, str) else stdin)
        return typed("doctor", *arguments)


def squeezed(text: str) -> str:
    return re.sub(r"\[([^]]*)\]\([^)]*\)|\s+|```\w*", r"\1", text)


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.anchor)
def test_an_entry_is_shown_whole(entry: MessageEntry, capsys: pytest.CaptureFixture[str]) -> None:
    """An entry is shown with messages, parts, findings and address. Only text to copy may exceed 80 columns."""
    show([entry], as_json=False)
    out = capsys.readouterr().out
    shown = squeezed(re.sub(r"^(Message|Cause|Check|Fix) ", "", out, flags=re.MULTILINE))
    long = [line for line in out.splitlines() if len(line) > 80]

    for text in (*entry.messages, *entry.parts.values()):
        assert squeezed(text) in shown
    assert all(f"docs/findings/{rule}.md" in out for rule in entry.findings)
    assert f"/findings/errors#{entry.anchor} " in out
    assert [line for line in long if not line.startswith((" " * 11, "See "))] == []


@pytest.mark.parametrize("fail_on", ["notice", "critical"])
def test_an_explained_message_is_a_success(fail_on: str) -> None:
    """An explained message exits with 0 at any --fail-on level and prints nothing on stderr."""
    done = doctor(PASTED["traceback of a first step"][0], "--fail-on", fail_on)

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("No inf checks were recorded for this optimizer\n")


def test_at_most_two_others_are_named() -> None:
    """At most two titles of similar entries follow an entry."""
    text = "\n".join(message for entry in entries()[:12] for message in entry.messages)
    done = doctor("-", stdin=text)
    titles = done.out.partition("Or is it one of these?\n")[2].splitlines()

    assert len(titles) == 2
    assert {title.strip() for title in titles} <= {entry.title for entry in entries()}


def test_a_log_is_read_from_standard_input() -> None:
    """`-` reads a log from standard input. A log with a known message exits with 0, another with 2 and a reason."""
    text, anchor = PASTED["an exception at the end of a log"]
    found, none = doctor("-", stdin=text), doctor("-", stdin=UNRELATED["out of memory"])

    assert (found.code, found.err) == (0, "")
    assert f"#{anchor} " in found.out
    assert (none.code, none.out) == (2, "")
    assert "no entry of the error index" in none.err


def test_the_end_of_a_long_log_is_read_whatever_its_bytes() -> None:
    """In a long log with invalid UTF-8, the last message is explained and earlier ones are ignored."""
    text, anchor = PASTED["fairseq's end"]
    earlier = PASTED["deepspeed's log line"][0]
    log = b"\n".join([earlier.encode(), b"\xff\x00 step 1" * 2**18, text.encode()])
    done = doctor("-", stdin=io.TextIOWrapper(io.BytesIO(log), "utf-8", "strict"))

    assert f"#{anchor} " in done.out
    assert "Attempted loss scale" not in done.out


def test_an_entry_is_json_where_that_is_asked_for() -> None:
    """With --json, stdout is one object with the entry's parts, anchor, findings and similar titles."""
    text, anchor = PASTED["traceback of a first step"]
    answer = json.loads(doctor(text, "--json").out)

    assert answer["anchor"] == anchor
    assert [*answer["parts"]] == [*PARTS]
    assert answer["findings"] == ["no_gradients"]
    assert len(answer["near"]) <= 2


def test_an_unknown_message_is_neither_an_entry_nor_a_run(data_directory: Path) -> None:
    """An unknown sentence exits with 2, as neither a message nor a run. A single word is only taken for a run."""
    sentence, word = doctor(UNRELATED["out of memory"]), doctor("baseline")

    assert (sentence.code, sentence.out) == (word.code, word.out) == (2, "")
    assert "no entry of the error index" in sentence.err
    assert "holds no runs" in sentence.err
    assert "error index" not in word.err
    assert not data_directory.exists()


def test_a_short_text_names_a_run_before_a_message() -> None:
    """Words that name a run mean that run. Without such a run they mean the message."""
    name = "gradient overflow"
    before = doctor(name)
    run_id = ampmon.init("tests", name)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", model=model)
    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    ampmon.finish()
    after = doctor(name)

    assert before.code == 0
    assert "Cause " in before.out
    assert str(run_id) in after.out
    assert "Cause " not in after.out


def test_it_needs_neither_the_server_s_packages_nor_torch() -> None:
    """Messages are explained without torch and the server's packages, and no installation is suggested."""
    absent = (
        "torch",
        "rich",
        "fastapi",
        "sqlalchemy",
        "pydantic",
        "starlette",
        "uvicorn",
    )
    program = (
        "import sys; from ampmon_server.cli import main\n"
        f"sys.modules.update(dict.fromkeys({absent}))\n"
        "sys.exit(main(['doctor', *sys.argv[1:]]))"
    )

    def run(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, text], capture_output=True, text=True, check=False
        )

    long, short = run(PASTED["traceback of a first step"][0]), run("grad_norm: nan")
    unknown = run(UNRELATED["out of memory"])

    assert (long.returncode, short.returncode, unknown.returncode) == (0, 0, 2)
    assert "#no-inf-checks-were-recorded-for-this-optimizer " in long.stdout
    assert "#grad_norm-is-nan " in short.stdout
    assert "no entry of the error index" in unknown.stderr
    assert "pip install" not in unknown.stderr
