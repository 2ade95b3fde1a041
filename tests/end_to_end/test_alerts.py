"""An alert's way from a failing run through a real server and Apprise to good and bad receivers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ampmon_server.cli import main
from posted import PostedRun
from receiver import Receiver, receiving, written
from serving import Server
from waiting import wait_for


AT_ONCE = "[policy.after_s]\nwarning = 0\n"
RULE = "culprit_layer"
NAMES = ("good", "refusing", "redirecting", "hanging")


@pytest.fixture
def receivers() -> Iterator[dict[str, Receiver]]:
    """Receivers that accept, answer 500, redirect to ``good``, and never answer."""
    let_go = threading.Event()
    with ExitStack() as stack:
        found = {name: stack.enter_context(receiving()) for name in NAMES}
        found["refusing"].answer = 500
        found["redirecting"].answer = 307
        found["redirecting"].location = f"http://{found['good'].netloc}/inner"
        found["hanging"].answer = let_go.wait
        stack.callback(let_go.set)
        yield found


@pytest.fixture
def alarmed(
    receivers: dict[str, Receiver], new_server: Callable[..., Server], tmp_path: Path
) -> Server:
    """A server that sends its alerts to all receivers."""
    targets = "".join(
        f'[[targets]]\nname = "{name}"\nurl = "json://{each.netloc}/{name}?rto=600&cto=600"\n'
        for name, each in receivers.items()
    )
    file = written(tmp_path / "alerts.toml", f"allow_private = true\n{targets}{AT_ONCE}")
    options = ["--alerts", str(file), "--public-url", "https://ampmon.example.org"]
    return new_server(options=options)


def test_an_alert_arrives_and_resolves_while_others_fail(
    alarmed: Server, receivers: dict[str, Receiver], capsys: pytest.CaptureFixture[str]
) -> None:
    """An alert and its end reach the good receiver. Failing targets are reported and delay nothing."""
    run = PostedRun(alarmed, name="run-7")
    run.updates(40, sampled=False)
    for _ in range(5):
        run.updates(9, sampled=False)
        run.updates(skipped=True, sampled=False)
    good = receivers["good"]

    def about_the_culprit() -> list[dict[str, Any]]:
        return [each for each in good.got if "first to overflow" in each["title"]]

    (sent,) = wait_for(about_the_culprit)
    (alert,) = [each for each in alarmed.get(run.path)["alerts"] if each["rule"] == RULE]

    assert (alert["state"], alert["severity"]) == ("firing", "warning")
    assert sent["title"].startswith("ampmon warning: run-7: head.weight is the first to overflow")
    assert "Run: run-7 in tests, of tester" in sent["message"]
    assert "Culprit: head.weight" in sent["message"]
    assert f"https://ampmon.example.org/#{run.path}?start=49&stop=" in sent["message"]

    def deliveries() -> dict[str, Any]:
        (stands,) = [each for each in alarmed.get(run.path)["alerts"] if each["rule"] == RULE]
        return {each["target"]: each for each in stands["deliveries"]}

    def all_but_one_are_done() -> Any:
        stand = deliveries()
        done = [stand["good"]["sent"], *(stand[name]["trouble"] for name in NAMES[1:3])]
        return stand if all(done) else None

    stand = wait_for(all_but_one_are_done)
    assert stand["refusing"]["trouble"] == "it refused the message (500)"
    assert "redirect (307)" in stand["redirecting"]["trouble"]
    assert (stand["hanging"]["sent"], stand["hanging"]["attempts"]) == (None, 1)
    assert "/inner" not in good.paths

    assert main(["alerts", "list", "--data-dir", str(alarmed.directory)]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"(?m)^firing +warning +tests +run-7 +head.weight is the first", listed)
    assert re.search(r"(?m)^refusing +json .* it refused the message \(500\)$", listed)

    run.event("finish")
    assert deliveries()["hanging"]["sent"] is None, "nobody waits for the one that hangs"
    wait_for(lambda: any("resolved: run-7" in title for title in good.titles))
    targets = {each["name"]: each for each in alarmed.get("/alerts/targets")["targets"]}
    assert targets["good"]["trouble"] is None
    assert targets["refusing"]["waiting"] >= 1
    assert alarmed.get("/alerts")["alerts"] == []
    assert "the target refusing: it refused the message (500)" in alarmed.printed
