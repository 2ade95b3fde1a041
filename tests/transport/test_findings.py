"""The server's findings reach the training process through the sender, and never disturb the training."""

from __future__ import annotations

import copy
import pickle
import re
import shutil
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import ampmon
from ampmon import wire
from ampmon.client.findings import FindingListener, Findings
from ampmon.spool.state import Answers, requested
from attempts import Attempt, end_sender
from doubles import MemoryTransport
from draining import drain
from older_torch import named
from serving import Server
from waiting import DEADLINE_S, wait_for


def found(rule: str = "skip_rate", severity: str = "warning", **more: Any) -> dict[str, Any]:
    """A finding as in an acknowledgement."""
    words = {"title": f"{rule} is {severity}", "explanation": "", "fix": "scaler.update()"}
    return {"rule": rule, "severity": severity, **words, **more}


def kept(path: Path) -> Any:
    return msgspec.msgpack.decode((path / "findings").read_bytes())


class Known:
    """The findings a process knows, read from a folder that stands for its spool."""

    def __init__(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self.warnings: list[str] = []
        self.messages: list[str] = []
        self.failures: list[BaseException] = []
        self.findings = Findings(
            lambda key, message: (self.warnings.append(key), self.messages.append(message)),
            lambda where, error: self.failures.append(error),
        )
        self.answers = Answers(path)

    def arrive(self, *findings: dict[str, Any]) -> None:
        self.answers.keep(findings)
        self.findings.look(self.path)


@pytest.fixture
def known(tmp_path: Path) -> Iterator[Known]:
    known = Known(tmp_path / "spool")
    yield known
    known.findings.finish()


def test_the_sender_leaves_what_was_found_in_the_spool(tmp_path: Path) -> None:
    """Findings and requests of an acknowledgement are stored in the spool. Without new ones, the old ones stay."""
    server = MemoryTransport()
    attempt = Attempt(tmp_path)
    for findings, expected, asked, request in [
        ((found(),), [found()], None, None),
        (None, [found()], 5, 5),
        ((found("dead_scale"), found()), [found("dead_scale"), found()], None, 5),
        ((), [], 7, 7),
    ]:
        server.findings, server.request = findings, asked
        attempt.events(1)
        drain(tmp_path, lambda destination: server)
        assert (kept(attempt.spool.path), requested(attempt.spool.path)) == (expected, request)
    attempt.spool.close()


def test_records_arrive_where_findings_cannot_be_kept(tmp_path: Path) -> None:
    """Records arrive even if the findings cannot be written or the spool is gone."""
    server = MemoryTransport()
    server.findings = (found(),)
    attempt = Attempt(tmp_path)
    (attempt.spool.path / "findings").mkdir()
    attempt.events(3)
    assert drain(tmp_path, lambda destination: server).sent == 3
    answers = Answers(attempt.spool.path)
    attempt.spool.close()
    shutil.rmtree(attempt.spool.path)
    answers.keep((found(),))
    answers.ask(5)


def test_findings_are_written_once(tmp_path: Path) -> None:
    """Findings that the server repeats are not written again, so the training does not read them again."""
    answers = Answers(tmp_path)
    answers.keep((found(),))
    (file,) = tmp_path.iterdir()
    file.unlink()
    answers.keep((found(),))
    assert not file.exists()


def test_a_listener_hears_each_finding_once_and_again_when_it_is_graver(known: Known) -> None:
    """A listener is called once per rule, again when the finding gets worse, and not for another scaler's findings."""
    heard: list[tuple[str, str]] = []
    listener = FindingListener(
        "scaler", lambda finding: heard.append((finding.rule, finding.severity))
    )
    known.findings.listen(listener)
    known.arrive(found(), found("nan", scaler="other"))
    known.arrive(found(), found("silent", "notice", scaler="scaler"))
    known.arrive()
    known.arrive(found(severity="notice"))
    known.arrive(found(severity="critical"))
    expected = [("skip_rate", "warning"), ("silent", "notice"), ("skip_rate", "critical")]
    wait_for(lambda: len(heard) >= 3)
    assert heard == expected


def test_a_listener_that_raises_or_is_slow_holds_up_nobody(known: Known) -> None:
    """A slow listener does not hold up new findings, and its exceptions are reported."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(finding: wire.Finding) -> None:
        begun.set()
        assert go_on.wait(DEADLINE_S)
        raise RuntimeError(finding.rule)

    listener = FindingListener("scaler", slow)
    known.findings.listen(listener)
    known.arrive(found("first"))
    assert begun.wait(DEADLINE_S)
    known.arrive(found("second"))
    assert [finding.rule for finding in known.findings.newest] == ["second"]
    go_on.set()
    wait_for(lambda: len(known.failures) == 2)
    assert [str(error) for error in known.failures] == ["first", "second"]


def test_findings_of_a_newer_server_are_left_out(known: Known) -> None:
    """Findings that cannot be decoded are left out, and the others are kept."""
    known.arrive(found("odd", severity="catastrophic"), found("known", also="new"), {"rule": 3})
    assert [finding.rule for finding in known.findings.newest] == ["known"]
    (known.path / "findings").write_bytes(b"\xc1 not msgpack")
    known.findings.look(known.path)
    assert [finding.rule for finding in known.findings.newest] == ["known"]


def test_only_the_recommended_fix_is_in_a_warning(known: Known) -> None:
    """Both critical findings are warned of, but only the recommended fix is shown."""
    known.arrive(
        found("dead_scale", "critical"), found("diverged", "critical", second="Alternative")
    )
    first, second = known.messages
    assert first.endswith("Write:\nscaler.update()")
    assert second == "ampmon: diverged is critical."


def test_a_critical_finding_is_warned_of(known: Known) -> None:
    """Critical findings become warnings under a key per rule, and others do not."""
    known.arrive(found("dead_scale", "critical"), found("skip_rate"))
    assert known.warnings == ["finding dead_scale"]


EVIL = "a\x1b]0;owned\x07b\x9b31mc\u202ed\n" + "long " * 2000


def test_a_server_cannot_command_the_terminal_of_a_training(known: Known) -> None:
    """A server's words are shown as plain text of limited length and number. Invalid rule names are left out."""
    bad = (EVIL, "Skip", "skip rate", "x" * 65, "")
    words = {"title": EVIL, "explanation": EVIL, "fix": EVIL, "scaler": EVIL, "figure": EVIL}
    words |= {"parameters": [EVIL] * 500, "evidence": {EVIL: EVIL}}
    known.arrive(
        *(found(rule, "critical") for rule in bad), found("dead_scale", "critical", **words)
    )
    (kept_one,) = known.findings.newest
    shown = str(msgspec.to_builtins(kept_one))
    known.arrive(*(found(f"rule_{number}", "critical") for number in range(1000)))

    assert known.warnings[0] == "finding dead_scale"
    assert "a ]0;owned b 31mc d" in known.messages[0]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", known.messages[0])
    assert "\\x" not in shown
    assert "\\u" not in shown
    assert len(known.messages[0]) < 6000
    assert len(shown) < 50_000
    assert len(known.findings.newest) == 100
    assert len(known.warnings) == 32


def test_a_scaler_with_a_listener_pickles() -> None:
    """A scaler with a listener can be pickled and copied."""
    scaler = ampmon.GradScaler("cpu", on_finding=lambda finding: None)
    watched = ampmon.watch(torch.amp.GradScaler("cpu"), on_finding=lambda finding: None)
    for each in (scaler, watched):
        assert pickle.loads(pickle.dumps(each)).state_dict() == each.state_dict()
        assert copy.deepcopy(each).state_dict() == each.state_dict()


def test_findings_of_a_real_run_reach_the_training(server: Server, data_directory: Path) -> None:
    """A training learns of its dying scale by its monitor, a listener called on another thread, and a warning."""
    heard: list[tuple[str, str]] = []
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(named(model.named_parameters()), lr=0.1)
    scaler = ampmon.GradScaler(
        "cpu",
        init_scale=2.0**-110,
        model=model,
        on_finding=lambda finding: heard.append((finding.rule, threading.current_thread().name)),
    )
    monitor = scaler.monitor
    assert monitor is not None

    def trained() -> bool:
        scaler.scale(model(torch.full((2, 4), float("nan"))).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return monitor.should_stop and bool(heard)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wait_for(trained)
    assert monitor.findings[0].severity == "critical"
    assert {thread for _, thread in heard} == {"ampmon-findings"}
    assert any(monitor.findings[0].title in str(warning.message) for warning in caught)
    ampmon.finish()
    end_sender(data_directory)
