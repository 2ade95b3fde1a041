"""Activations by module, through the store and over HTTP."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import event, text
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.store import Store
from batches import MODULES, PASSED, START, Trainer, activations, statistics


Send = Callable[[wire.Batch], dict[str, Any]]


def forward(*magnitudes: float) -> bytes:
    return np.array(magnitudes, "<f8").tobytes()


def overflowing(*rows: int, nan: bool = False) -> wire.Gradients:
    """Gradients of the modules in `PASSED`, infinite or NaN in these rows."""
    made, lost = statistics(3), np.isin(np.arange(3), rows).astype(np.int64)
    spoilt = replace(made, zeros=made.zeros - lost, inf=lost * (not nan), nan=lost * nan)
    return spoilt.renumbered(np.array(PASSED)).to_wire()


def test_a_row_per_module_in_forward_order(client: TestClient, send: Send) -> None:
    """The newest sample at or before a step gives one row per module: counts, both headrooms and modules left out."""
    trainer = Trainer()
    send(trainer.batch(trainer.updates(40, sampled=(0, 20))))
    answer = client.get(f"/api/v1/runs/{trainer.run_id}/modules?step=35").json()
    first, second, third = answer["modules"]

    assert (answer["step"], answer["time"], answer["ranks"]) == (20, START + 20 * 50_000, [0])
    assert [row["name"] for row in answer["modules"]] == ["embedding", "block.mlp", "block"]
    assert [row["kind"] for row in answer["modules"]] == ["Embedding", "Linear", "Block"]
    assert (first["elements"], first["looked"], first["zeros"], first["subnormal"]) == (
        800,
        80,
        8,
        72,
    )
    assert (second["forward"], second["forward_kind"]) == (1000.0, None)
    assert second["forward_headroom_bits"] == pytest.approx(math.log2(65504 / 1000))
    assert third["headroom_bits"] == pytest.approx(math.log2(65504 / third["amax"]))
    assert sum(first["histogram"]) == 72
    assert answer["left_out"] == ["encoder"]


def test_numbers_that_are_not_finite_keep_their_kind(client: TestClient, send: Send) -> None:
    """Infinite and NaN outputs are null with their kind. Without fp16 gradients, amax and headroom are null."""
    trainer = Trainer()
    nothing = statistics(3).renumbered(np.array(PASSED))
    for array in (nothing.looked, nothing.zeros, nothing.on_grid, nothing.histogram, nothing.amax):
        array[1] = 0
    passed = activations(gradients=nothing.to_wire(), forward=forward(math.inf, math.nan, 0.0))
    send(trainer.batch([trainer.update(activations=passed)]))
    first, second, third = client.get(f"/api/v1/runs/{trainer.run_id}/modules").json()["modules"]

    assert (first["forward"], first["forward_kind"]) == (None, "inf")
    assert (first["forward_headroom_bits"], first["forward_headroom_bits_kind"]) == (None, "-inf")
    assert (second["forward"], second["forward_kind"]) == (None, "nan")
    assert (second["looked"], second["amax"], second["headroom_bits"]) == (0, None, None)
    assert (third["forward_headroom_bits"], third["forward_headroom_bits_kind"]) == (None, "inf")


def test_a_run_without_them_has_none(client: TestClient, send: Send) -> None:
    """Without activations, the route gives 404 and the chart says how to enable them."""
    trainer = Trainer()
    send(trainer.batch(trainer.updates(5)))
    answer = client.get(f"/api/v1/runs/{trainer.run_id}/modules")
    figure = client.get(f"/api/v1/runs/{trainer.run_id}/figures/activations").json()

    assert answer.status_code == 404
    assert "No activation sample" in answer.json()["detail"]
    assert "Config(activations=100)" in figure["layout"]["meta"]["empty"]


@pytest.mark.parametrize(
    ("query", "step"),
    [
        ("", 30),
        ("?stop=30", 20),
        ("?start=5&stop=20", 10),
        (f"?x=time&start={START}&stop={START + 29 * 50_000}", 20),
        (f"?x=time&start={START + 1}&stop={START + 10 * 50_000}", None),
    ],
)
def test_the_chart_is_of_the_newest_sample_in_view(
    client: TestClient, send: Send, query: str, step: int | None
) -> None:
    """The chart shows the newest sample in a window by step or time, or says that there is none."""
    trainer = Trainer()
    send(trainer.batch(trainer.updates(40, sampled=(0, 10, 20, 30))))
    meta = client.get(f"/api/v1/runs/{trainer.run_id}/figures/activations{query}").json()["layout"][
        "meta"
    ]

    if step is None:
        assert "No sampled activation" in meta["empty"]
    else:
        assert meta["caption"].startswith(f"Step {step},")


def test_a_later_attempt_overlays(client: TestClient, send: Send) -> None:
    """For repeated steps, only the later attempt's samples are shown."""
    first = Trainer()
    send(first.batch(first.updates(30, sampled=(5, 15, 25))))
    second = Trainer(run_id=first.run_id, resume_step=10)
    records = [
        second.update(activations=activations(forward=forward(7, 7, 7)) if step == 12 else None)
        for step in range(10, 20)
    ]
    send(second.batch(records))

    def at(step: int) -> tuple[int, float]:
        answer = client.get(f"/api/v1/runs/{first.run_id}/modules?step={step}").json()
        return answer["step"], answer["modules"][0]["forward"]

    assert at(9) == (5, 2.0)
    assert at(19) == (12, 7.0)
    assert at(29) == (25, 2.0)


@pytest.mark.engines
def test_blocks_are_read_one_at_a_time_from_the_newest_on(store: Store) -> None:
    """Blocks are read one at a time, newest first, only as far as the newest valid sample."""
    first = Trainer()
    store.ingest(first.batch(first.updates(100, sampled=range(100))))
    again = Trainer(run_id=first.run_id, resume_step=20)
    store.ingest(again.batch(again.updates(80)))
    held: list[int] = []

    def note(*happening: Any) -> None:
        if "FROM module_blocks" in happening[2]:
            held.append(happening[1].rowcount)

    event.listen(store._engine, "after_cursor_execute", note)
    assert store.modules(first.run_id).step == 19
    assert len(held) == 5  # four of the first attempt, and none found of the later one
    assert max(held) <= 1  # SQLite's driver reports no row count
    event.remove(store._engine, "after_cursor_execute", note)


def test_shards_are_put_together_by_name(client: TestClient, send: Send) -> None:
    """Sharded modules are summed over ranks of the same start, with the largest output of any rank."""
    ranks = [Trainer(rank=0, layout="sharded", world_size=2)]
    ranks.append(Trainer(run_id=ranks[0].run_id, rank=1, layout="sharded", world_size=2))
    for rank, trainer in enumerate(ranks):
        passed = activations(seed=rank, forward=forward(rank + 1, 1, 5 - rank))
        send(trainer.batch([trainer.update(activations=passed)]))
    answer = client.get(f"/api/v1/runs/{ranks[0].run_id}/modules").json()

    assert answer["ranks"] == [0, 1]
    assert [row["elements"] for row in answer["modules"]] == [1600, 160, 320]
    assert [row["looked"] for row in answer["modules"]] == [160] * 3
    assert [row["forward"] for row in answer["modules"]] == [2, 1, 5]

    alone = Trainer(run_id=ranks[0].run_id, resume_step=0, layout="sharded")
    send(alone.batch([alone.update(activations=activations())]))
    answer = client.get(f"/api/v1/runs/{ranks[0].run_id}/modules").json()
    assert (answer["ranks"], answer["modules"][0]["elements"]) == ([0], 800)


@pytest.mark.parametrize(
    ("passed", "loss", "origin"),
    [
        (
            activations(forward=forward(1, math.inf, math.nan)),
            "not_finite",
            ("forward", "block.mlp"),
        ),
        (activations(), "not_finite", ("forward", None)),
        (activations(gradients=overflowing(0, 1)), "finite", ("backward", "block")),
        (activations(), "finite", ("backward", None)),
        # The infinite output is, say, masked, so the loss stays finite.
        (activations(forward=forward(1, math.inf, 1)), "finite", ("backward", None)),
        # A tanh, say, bounds the infinite output: the loss is finite, but backward multiplies 0 by infinity.
        (
            activations(forward=forward(1, math.inf, 1), gradients=overflowing(0, nan=True)),
            "finite",
            ("forward", "block.mlp"),
        ),
        (activations(forward=forward(1, math.inf, 1)), None, ("forward", "block.mlp")),
        (activations(), None, ("backward", None)),
        (None, None, (None, None)),
    ],
)
def test_the_ledger_says_where_an_overflow_began(
    client: TestClient,
    send: Send,
    passed: wire.Activations | None,
    loss: wire.LossState | None,
    origin: tuple[str | None, str | None],
) -> None:
    """The ledger says whether an overflow began in forward or backward, and in which module."""
    trainer = Trainer()
    send(trainer.batch([trainer.update(skipped=True, activations=passed, loss=loss)]))
    (skip,) = client.get(f"/api/v1/runs/{trainer.run_id}/skips").json()["skips"]

    assert (skip["origin"], skip["origin_module"]) == origin


@pytest.mark.storage
@pytest.mark.parametrize(
    ("recorded", "ledger"),
    [
        ({"loss": "finite"}, ("finite", "backward", None)),
        ({"loss": "overflowed"}, ("overflowed", "backward", None)),
        ({"loss": "not_finite"}, ("not_finite", None, None)),
        ({"loss": "not_finite", "origin": "input"}, ("not_finite", "input", None)),
        (
            {"loss": "not_finite", "origin": "forward", "origin_module": 2},
            ("not_finite", "forward", "block.mlp"),
        ),
        # The reported loss takes precedence over sampled activations.
        (
            {"loss": "finite", "activations": activations(forward=forward(1, math.inf, 1))},
            ("finite", "backward", None),
        ),
        ({}, (None, None, None)),
    ],
)
def test_the_ledger_has_the_word_on_the_loss(
    store: Store, recorded: dict[str, Any], ledger: tuple[str | None, ...]
) -> None:
    """The ledger keeps the reported loss and origin. A lost loss of unreported origin has none."""
    trainer = Trainer()
    store.ingest(trainer.batch([trainer.update(skipped=True, **recorded)]))
    (skip,) = store.skips(trainer.run_id).rows
    assert (skip.loss, skip.origin, skip.origin_module) == ledger


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"origin_module": 5}, "records[0].origin_module"),
        ({"elements": b"\0" * 16}, "records[0].activations.elements"),
        ({"forward": b"\0" * 25}, "records[0].activations.forward"),
        ({"elements": b"\0" * 24}, "records[0].activations.elements"),
        ({"elements": b"\xff" * 7 + b"\x7f" + b"\1\1" * 8}, "records[0].activations.elements"),
        (
            {"gradients": statistics(3).renumbered(np.array([0, 1, 9])).to_wire()},
            "records[0].activations.gradients.parameters",
        ),
        (
            {"gradients": statistics(3).renumbered(np.array([0, 1, 1])).to_wire()},
            "records[0].activations.gradients.parameters",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    client: TestClient, fields: dict[str, Any], named: str
) -> None:
    """Impossible lengths, counts and indices get 422 with the field's name, and nothing is stored."""
    trainer = Trainer()
    recorded = fields if "origin_module" in fields else {"activations": activations(**fields)}
    batch = trainer.batch([trainer.update(skipped=True, **recorded)])
    answer = client.post(
        "/api/v1/ingest",
        content=wire.encode(batch),
        headers={"Content-Type": "application/msgpack"},
    )

    assert answer.status_code == 422
    assert named in answer.text
    assert client.get(f"/api/v1/runs/{trainer.run_id}").status_code == 404


def test_a_header_may_gain_modules_and_lose_none(client: TestClient, send: Send) -> None:
    """A header may add modules at its end, and an older one changes nothing. Another list is rejected."""
    trainer = Trainer()
    short = wire.StreamHeader(
        stream="scaler", scaler="GradScaler", device="cpu", modules=MODULES[:1]
    )
    other = wire.StreamHeader(
        stream="scaler", scaler="GradScaler", device="cpu", modules=MODULES[1:]
    )
    long = wire.StreamHeader(stream="scaler", scaler="GradScaler", device="cpu", modules=MODULES)
    for header in (short, long, short):
        send(trainer.batch(headers=(trainer.attempt, header)))
    send(trainer.batch([trainer.update(activations=activations())], headers=()))
    refused = client.post(
        "/api/v1/ingest",
        content=wire.encode(trainer.batch(headers=(trainer.attempt, other))),
        headers={"Content-Type": "application/msgpack"},
    )

    assert (refused.status_code, "headers[1].modules" in refused.text) == (422, True)
    answer = client.get(f"/api/v1/runs/{trainer.run_id}/modules").json()
    assert [row["name"] for row in answer["modules"]] == ["embedding", "block.mlp", "block"]


@pytest.mark.storage
def test_a_deleted_run_leaves_no_activations(store: Store) -> None:
    """Clearing a deleted run deletes its blocks of activations."""
    trainer = Trainer()
    store.ingest(trainer.batch(trainer.updates(3, sampled=(0, 1))))
    store.delete(trainer.run_id)
    assert sum(store.clear(trainer.run_id)) > 0
    with store._engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM module_blocks")) == 0
