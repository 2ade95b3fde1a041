"""A real trainer, sender and server talk through a proxy that misbehaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ampmon.sender.loop import http_transports
from ampmon.spool import spools
from ampmon.transport import HttpTransport
from attempts import Attempt, seqs
from campaigns.soak.proxy import Fault, Proxy
from draining import drain
from recording_server import RecordingServer
from serving import Server, free_port
from training import Trainer, stored
from waiting import DEADLINE_S, wait_for


HOSTILE: dict[Fault, float] = {
    "lose_ack": 0.12,
    "cut_answer": 0.08,
    "repeat": 0.08,
    "echo": 0.08,
    "drop": 0.08,
    "reset": 0.06,
    "cut_request": 0.08,
    "delay": 0.08,
    "hang_up": 0.06,
    "trickle": 0.02,
    "error": 0.04,
    "busy": 0.04,
    "garbage": 0.02,
    "nonsense": 0.02,
    "redirect": 0.02,
}
FAILING: tuple[Fault, ...] = (
    *("lose_ack", "cut_answer", "drop", "reset", "cut_request", "error"),
    *("busy", "garbage", "nonsense", "redirect"),
)
"""After each of these faults the sender has no acknowledgement and sends again. Each part of the training meets two."""
UPDATES, EACH = 300, 50


def test_everything_arrives_once_through_a_hostile_network(
    new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training through drops, repeats, cuts and lost answers is stored completely, each update once."""
    port = free_port()
    with Proxy(port, chances=HOSTILE, seed=11) as proxy:
        server = new_server(port=port, options=["--allow-host", f"127.0.0.1:{proxy.port}"])
        proxy.trickle_s = 0.001
        for first, second in zip(FAILING[::2], FAILING[1::2], strict=True):
            proxy.next(first, second, "pass")  # a success resets the sender's growing pauses
        monkeypatch.setenv("AMPMON_URL", proxy.url)
        monkeypatch.setenv("AMPMON_MODE", "online")
        with Trainer() as trainer:
            for done in range(EACH, UPDATES + 1, EACH):
                trainer.train(EACH)
                wait_for(lambda done=done: stored(server, trainer.run_id) == done)
            # The only warning allowed says that the server cannot be reached.
            assert trainer.finish().count("Warning") <= 1
        run: dict[str, Any] = wait_for(lambda: finished(server, trainer.run_id))
        assert {*FAILING} <= {*proxy.counts}
        assert proxy.lost_acks >= 2
        wait_for(lambda: not spools(server.directory))
    assert (run["updates"], run["skipped"], run["lost_records"]) == (UPDATES, UPDATES // 100, 0)
    columns = server.get(f"/runs/{trainer.run_id}/updates?limit=100000")
    assert columns["step"] == list(range(UPDATES))


def test_run_that_ends_before_its_records_are_confirmed_says_so(
    recorder: RecordingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose server has not answered yet at its end says that its newest records are not confirmed."""
    with Proxy(recorder.port) as proxy:
        proxy.next("hang")
        monkeypatch.setenv("AMPMON_URL", proxy.url)
        monkeypatch.setenv("AMPMON_TOKEN", "secret")
        monkeypatch.setenv("AMPMON_MODE", "online")
        with Trainer() as trainer:
            trainer.train(10)
            wait_for(lambda: proxy.counts["hang"])
            assert f"{proxy.url} has not confirmed the newest records" in trainer.finish()


def finished(server: Server, run_id: str) -> dict[str, Any] | None:
    answer = server.request("GET", f"/api/v1/runs/{run_id}")
    found = answer.json() if answer.status == 200 else {}
    return found if found.get("status") == "finished" else None


@pytest.fixture
def recorder() -> Iterator[RecordingServer]:
    with RecordingServer(token="secret") as recorder:
        yield recorder


def test_token_follows_no_redirect(tmp_path: Path, recorder: RecordingServer) -> None:
    """A redirect does not carry the token or any request to another server, and no record is lost."""
    with RecordingServer() as elsewhere, Proxy(recorder.port) as proxy:
        proxy.elsewhere = f"{elsewhere.url}/api/v1/ingest"
        proxy.next("redirect")
        attempt = Attempt(tmp_path, url=proxy.url)
        attempt.events(3)
        (tmp_path / "token").write_text("secret")
        assert drain(tmp_path, http_transports(tmp_path)).problems
        assert elsewhere.requests == []
        assert drain(tmp_path, http_transports(tmp_path)).sent == 3
        assert seqs(recorder.store.records(attempt.id)) == [0, 1, 2]
        attempt.spool.close()


@pytest.mark.parametrize("fault", ["garbage", "nonsense", "cut_answer", "withhold", "hang"])
def test_answer_that_is_none_moves_no_cursor(
    tmp_path: Path, recorder: RecordingServer, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """After any fault in place of an answer, unacknowledged records are sent again and stored once."""
    monkeypatch.setattr("ampmon.transport.CONNECT_TIMEOUT_S", DEADLINE_S)
    with Proxy(recorder.port) as proxy:
        attempt = Attempt(tmp_path, url=proxy.url)
        attempt.events(3)
        for nth in range(3):
            proxy.next(fault)
            impatient = HttpTransport(proxy.url, token="secret", read_timeout_s=0.1)
            assert drain(tmp_path, lambda _, impatient=impatient: impatient).sent == 0
            wait_for(lambda nth=nth: proxy.counts[fault] > nth)
        proxy.next("pass")
        assert drain(tmp_path, lambda _: HttpTransport(proxy.url, token="secret")).sent == 3
        assert proxy.counts[fault] == 3
        assert seqs(recorder.store.records(attempt.id)) == [0, 1, 2]
        attempt.spool.close()
