"""From `scaler.update()` to the answers of a running server, which must report what torch did."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ampmon
from ampmon.config import address_file
from ampmon.sender import status
from ampmon.system import private
from serving import Server, free_port
from training import Trainer, stored
from waiting import DEADLINE_S, wait_for
from warm import completed


UPDATES = 600


def train(scaler: torch.amp.GradScaler, updates: int) -> tuple[list[float], list[tuple[int, str]]]:
    """Train two optimizers under a scale that grows until fp16 overflows.

    Return the scale of each update, and each skip as update and optimizer. They come from the stock scaler's own scale
    and its found_inf before `update()`.
    """
    torch.manual_seed(0)
    first = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    second = torch.nn.Linear(16, 4)
    optimizers = {
        "SGD": torch.optim.SGD(first.parameters(), lr=1e-3),
        "AdamW": torch.optim.AdamW(second.parameters(), lr=1e-3, fused=True),
    }
    scales, skips = [], []
    for update in range(updates):
        inputs, targets = torch.randn(8, 16), torch.randint(0, 4, (8,))
        with torch.autocast("cpu", dtype=torch.float16):
            losses = [
                torch.nn.functional.cross_entropy(model(inputs), targets)
                for model in (first, second)
            ]
        weights = ((120.0, 1.0), (1.0, 50.0), (120.0, 50.0))[update % 3]
        scaler.scale(weights[0] * losses[0] + weights[1] * losses[1]).backward()
        for optimizer in optimizers.values():
            scaler.step(optimizer)
        scales.append(scaler.get_scale())
        for name, optimizer in optimizers.items():
            if sum(flag.item() for flag in scaler._found_inf_per_device(optimizer).values()):
                skips.append((update, name))
        scaler.update()
        for optimizer in optimizers.values():
            optimizer.zero_grad()
    return scales, skips


def test_the_server_tells_what_the_stock_scaler_did(server: Server) -> None:
    """Scales and skips of 600 updates with two optimizers, read back over HTTP, equal the stock scaler's."""
    arguments = {"init_scale": 2.0**10, "growth_interval": 5}
    scales, skips = train(torch.amp.GradScaler("cpu", **arguments), UPDATES)
    run_id = ampmon.init("tests", "ledger")
    train(ampmon.GradScaler("cpu", **arguments), UPDATES)
    ampmon.finish(deadline_s=DEADLINE_S)

    summary = wait_for(
        lambda: (run := server.get(f"/runs/{run_id}"))["status"] == "finished" and run
    )
    updates = server.get(f"/runs/{run_id}/updates?limit=1000000")
    ledger = server.get(f"/runs/{run_id}/skips?limit=1000")["skips"]
    assert updates["step"] == list(range(UPDATES))
    assert updates["scale"] == scales
    assert sorted((row["step"], row["optimizer"]) for row in ledger) == sorted(skips)
    skipped = {step for step, _ in skips}
    assert [step for step, flag in enumerate(updates["skipped"]) if flag] == sorted(skipped)
    assert {name for _, name in skips} == {"SGD", "AdamW"}
    assert 0 < len(skipped) < len(skips), "some updates must skip both optimizers and some only one"
    assert (summary["updates"], summary["skipped"]) == (UPDATES, len(skipped))
    assert summary["effective_updates"] == UPDATES - len(skipped)
    assert (summary["lost_records"], summary["errors"]) == (0, 0)


def test_a_server_that_goes_and_comes_back_has_every_update_once(server: Server) -> None:
    """A server killed and restarted during training stores every update exactly once."""
    check_comeback(server, server.kill)


def check_comeback(server: Server, end: Callable[[], None]) -> None:
    """End the server with ``end`` during training, start it again, and check what it stored."""
    with Trainer() as trainer:
        run_id = trainer.run_id
        trainer.train(100)
        wait_for(lambda: stored(server, run_id) == 100)
        trainer.train(100)  # some are still on their way
        end()
        trainer.train(100)
        server.start()
        trainer.train(100)
        trainer.finish()
    wait_for(lambda: stored(server, run_id) == 400)
    updates = server.get(f"/runs/{run_id}/updates")
    assert updates["step"] == list(range(400))
    summary = wait_for(
        lambda: (run := server.get(f"/runs/{run_id}"))["status"] == "finished" and run
    )
    assert (summary["updates"], summary["skipped"], summary["lost_records"]) == (400, 4, 0)
    assert kept_losses(server, run_id)[3] == (None, "nan")
    assert kept_losses(server, run_id)[4] == (0.2, None)
    assert [
        row["culprits"][0]["parameter"] for row in server.get(f"/runs/{run_id}/skips")["skips"]
    ] == ["bias"] * 4


def test_a_trainer_killed_is_delivered_to_its_last_update_and_marked_crashed(
    server: Server,
) -> None:
    """After `kill -9` of the trainer, the sender delivers what is on disk and the run becomes `crashed`."""
    with Trainer() as trainer:
        run_id = trainer.run_id
        trainer.train(200)
    wait_for(lambda: stored(server, run_id) == 200)
    wait_for(lambda: server.get(f"/runs/{run_id}")["status"] == "crashed")
    summary = server.get(f"/runs/{run_id}")
    assert server.get(f"/runs/{run_id}/updates")["step"] == list(range(200))
    assert (summary["updates"], summary["lost_records"]) == (200, 0)


def test_a_server_that_starts_adopts_what_dead_processes_left(
    new_server: Callable[..., Server], data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ampmon serve` delivers what a trainer and a sender left that were killed before it started."""
    later = Server(data_directory)
    monkeypatch.setenv("AMPMON_MODE", "online")
    monkeypatch.setenv("AMPMON_URL", later.url)
    with Trainer() as trainer:
        trainer.train(100)
        sender = wait_for(lambda: status(data_directory))
    os.kill(sender.pid, signal.SIGKILL)
    started = new_server(data_directory, port=later.port)
    wait_for(
        lambda: (
            stored(started, trainer.run_id)
            and started.get(f"/runs/{trainer.run_id}")["status"] == "crashed"
        )
    )
    assert started.get(f"/runs/{trainer.run_id}/updates")["step"] == list(range(100))
    assert started.get(f"/runs/{trainer.run_id}")["lost_records"] == 0


def test_a_run_goes_on_whatever_becomes_of_the_database(server: Server, tmp_path: Path) -> None:
    """After a restore, records newer than the backup count as lost. An emptied server gets the headers again."""
    where, copy = ["--data-dir", str(server.directory)], str(tmp_path / "copy.db")
    with Trainer() as trainer:
        path = f"/runs/{trainer.run_id}"
        trainer.train(20)
        wait_for(lambda: stored(server, trainer.run_id) == 20)
        assert completed(["db", "backup", copy, *where]).returncode == 0
        trainer.train(30)
        wait_for(lambda: stored(server, trainer.run_id) == 50)
        server.stop()
        assert completed(["db", "restore", copy, *where]).returncode == 0
        server.start()
        trainer.train(10)
        wait_for(lambda: server.get(path)["last_step"] == 59)
        run = server.get(path)
        assert (run["name"], run["updates"]) == ("trainer", 30)
        assert run["lost_records"] >= 30  # logged values are records too
        server.stop()
        for file in (server.directory / "server").glob("ampmon.db*"):
            file.unlink()
        server.start()
        trainer.train(10)
        wait_for(lambda: stored(server, trainer.run_id) == 10)
        assert server.get(path)["name"] == "trainer"


def test_records_wait_for_a_server_that_is_not_there_yet(
    new_server: Callable[..., Server], data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training without a server warns once, and every update arrives once a server starts."""
    later = Server(data_directory)
    monkeypatch.setenv("AMPMON_MODE", "online")
    monkeypatch.setenv("AMPMON_URL", later.url)
    with Trainer() as trainer:
        trainer.train(400)
        wait_for(lambda: "cannot be reached" in trainer.errors)
        warnings = trainer.finish()
    assert warnings.count("cannot be reached") == 1
    assert later.url in warnings
    started = new_server(data_directory, port=later.port)
    wait_for(lambda: stored(started, trainer.run_id) == 400)
    assert started.get(f"/runs/{trainer.run_id}")["lost_records"] == 0


@pytest.mark.parametrize("named", [True, False])
def test_a_server_that_has_just_started_is_not_called_unreachable(
    data_directory: Path, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a short run calls no server unreachable that accepts connections, and is silent about a local one."""
    port, token = free_port(), "0" * 43
    url = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("AMPMON_MODE", "online")
    monkeypatch.setenv("AMPMON_TOKEN", token)
    if named:
        monkeypatch.setenv("AMPMON_URL", url)
    else:
        private.directory(data_directory, "server")
        private.replace(address_file(data_directory), url.encode(), durable=False)
    with Trainer() as before:
        before.train(1)
        wait_for(lambda: (said := status(data_directory)) and said.problem(url, token=token))
    with socket.socket() as started, Trainer() as trainer:
        started.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        started.bind(("127.0.0.1", port))
        started.listen()
        trainer.train(1)
        said = trainer.finish()
        assert ("has not confirmed" in said, "cannot be reached" in said) == (named, False)


def test_a_server_with_another_token_is_not_called_unreachable(
    new_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server does not take the token, the warning says so, and does not ask to start a server."""
    server = new_server(tmp_path / "theirs")
    monkeypatch.setenv("AMPMON_MODE", "online")
    monkeypatch.setenv("AMPMON_URL", server.url)
    monkeypatch.setenv("AMPMON_TOKEN", "another")
    with Trainer() as trainer:
        trainer.train(10)
        wait_for(lambda: f"{server.url} takes no records" in trainer.errors)
        assert "token" in trainer.errors
        assert "ampmon serve" not in trainer.finish()


def test_a_run_with_the_right_token_is_not_warned_of_one_with_another(
    new_server: Callable[..., Server], data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of a run with a wrong token wait. The next run, with the right one, is delivered without a warning."""
    server = new_server(data_directory)
    monkeypatch.setenv("AMPMON_MODE", "online")
    monkeypatch.setenv("AMPMON_URL", server.url)
    monkeypatch.setenv("AMPMON_TOKEN", "another")
    with Trainer() as trainer:
        trainer.train(1)
        assert "takes no records" in trainer.finish()  # although it was short
    monkeypatch.delenv("AMPMON_TOKEN")
    with Trainer() as trainer:
        trainer.train(1)
        warnings = trainer.finish()
        assert stored(server, trainer.run_id) == 1
    assert "takes no records" not in warnings


def kept_losses(server: Server, run_id: str) -> dict[int, tuple[float | None, str | None]]:
    """The stored losses by step, each with its kind if it is not finite."""
    answer = server.get(f"/runs/{run_id}/scalars?name=loss")
    values = zip(answer["value"], answer["value_kind"], strict=True)
    return dict(zip(answer["step"], values, strict=True))
