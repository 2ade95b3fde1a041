"""Comparing several runs over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import msgspec
import numpy as np
import pytest
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.charts import View
from ampmon_server.queries import comparing
from ampmon_server.store import NotFound
from batches import Trainer, adversarial


def trained(client: TestClient, name: str, updates: int, **header: Any) -> str:
    """A run with a loss whose third update is skipped."""
    trainer = Trainer(name=name)
    attempt = msgspec.structs.replace(trainer.attempt, **header)
    records = [*trainer.updates(updates, skipped=[2], sampled=[0]), trainer.scalars({"loss": 0.25})]
    _ingest(client, trainer, records, headers=(attempt, trainer.stream))
    return str(trainer.run_id)


def _ingest(
    client: TestClient, trainer: Trainer, records: Sequence[wire.Record], **fields: Any
) -> None:
    batch = trainer.batch(records, **fields)
    client.app.state.service.store.ingest(batch)  # type: ignore[attr-defined]


def _came(client: TestClient, *runs: str) -> dict[str, list[str | None]]:
    """The runs' results by line name."""
    answer = client.get(f"/api/v1/compare?runs={','.join(runs)}").json()
    return {line["name"]: line["values"] for line in answer["outcome"]}


@pytest.fixture
def pair(client: TestClient) -> list[str]:
    return [
        trained(client, "one", 4, config={"lr": 0.1, "model": {"depth": 2}}),
        trained(client, "two", 8, config={"lr": 0.2, "model": {"depth": 2}}),
    ]


def test_what_differs_is_distinguished_from_what_does_not(
    client: TestClient, pair: list[str]
) -> None:
    """Each line has a value per run in the requested order, None for a deleted run, and says whether values differ."""
    gone = str(uuid4())
    answer = client.get(f"/api/v1/compare?runs={','.join([*pair, gone])}").json()
    made = {line["name"]: line for line in answer["made"]}
    came = _came(client, *pair, gone)

    assert [run and run["name"] for run in answer["runs"]] == ["one", "two", None]
    assert made["config.lr"] == {
        "name": "config.lr",
        "values": ["0.1", "0.2", None],
        "differs": True,
    }
    assert made["config.model.depth"]["differs"] is False
    assert made["scaler.growth_interval"]["values"] == ["2000", "2000", None]
    assert came["skipped"] == ["1", "1", None]
    assert came["skip rate"] == ["25\u202f%", "12.5\u202f%", None]
    assert came["loss (last)"] == ["0.25", "0.25", None]
    assert came["training"][0].startswith("3 of 4 steps applied (75\u202f%); 1 skipped.")


def test_a_configuration_is_compared_as_python_writes_it(client: TestClient) -> None:
    """A value of None, True or a list looks as it does in the script."""
    config = {"schedule": None, "compile": True, "betas": [0.9, 0.95]}
    run = trained(client, "one", 4, config=config)
    answer = client.get(f"/api/v1/compare?runs={run}").json()
    made = {line["name"]: line["values"][0] for line in answer["made"]}
    assert [made[f"config.{name}"] for name in config] == ["None", "True", "[0.9, 0.95]"]


def test_the_arguments_of_a_scaler_are_compared_one_by_one(client: TestClient) -> None:
    """The script's call that made a scaler has a line for each argument, as code."""
    trainer = Trainer(name="called")
    call = wire.ScalerCall(arguments={"device": '"cpu"', "growth_interval": "500"})
    stream = msgspec.structs.replace(trainer.stream, call=call)
    _ingest(client, trainer, trainer.updates(1), headers=(trainer.attempt, stream))
    answer = client.get(f"/api/v1/compare?runs={trainer.run_id}").json()
    made = {line["name"]: line["values"] for line in answer["made"]}

    assert made["scaler.arguments.device"] == ['"cpu"']
    assert made["scaler.arguments.growth_interval"] == ["500"]


def test_numbers_that_are_not_finite_are_distinguished_from_none(client: TestClient) -> None:
    """NaN and infinite values are named, and values never logged show a dash."""
    lost, other = Trainer(name="lost"), Trainer(name="other")
    records = [
        lost.update(scale_after=float("inf")),
        lost.scalars({"loss": 0.25}),
        lost.update(scale_after=float("inf")),
        lost.scalars({"loss": None}, kinds={"loss": "nan"}),
    ]
    _ingest(client, lost, records)
    _ingest(client, other, [other.update(), other.scalars({"accuracy": 0.5})])
    came = _came(client, str(lost.run_id), str(other.run_id))

    assert came["final scale"] == ["∞", "1\u202f024 = 2¹⁰"]
    assert came["loss (last)"] == ["NaN", "–"]
    assert came["loss (min)"] == ["0.25", "–"]


def test_logged_values_are_shown_of_the_rank_that_is_drawn(client: TestClient) -> None:
    """Logged values come from the lowest rank, whichever reports first."""
    run_id = uuid4()
    for rank, loss in ((2, 0.75), (1, 0.5), (0, 0.25)):
        trainer = Trainer(run_id, rank, world_size=3)
        _ingest(client, trainer, [trainer.update(), trainer.scalars({"loss": loss})])
    came = _came(client, str(run_id))
    assert (came["loss (last)"], came["loss (min)"]) == (["0.25"], ["0.25"])


def test_charts_of_several_runs_are_drawn_at_once(client: TestClient, pair: list[str]) -> None:
    """A chart has one trace per existing run and supports ETags. By time, a run begins at its own start."""
    for name in ("logged", "scale", "skips"):
        ask = f"/api/v1/compare/figures/{name}?runs={','.join([*pair, str(uuid4())])}"
        answer = client.get(ask)
        assert [trace["name"] for trace in answer.json()["data"]] == [
            "\u2068one\u2069",
            "\u2068two\u2069",
        ]
        assert client.get(ask, headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
    early = client.get(f"/api/v1/compare/figures/scale?runs={pair[1]}&x=time&start=0&stop=100001")
    assert early.json()["layout"]["xaxis"]["range"] == [-0.25, 100.25]


def _with_losses(client: TestClient, name: str, losses: np.ndarray, **header: Any) -> str:
    """A run with one update per loss. The first update is skipped."""
    trainer = Trainer(name=name)
    attempt = msgspec.structs.replace(trainer.attempt, **header)
    records: list[wire.Record] = []
    for step, loss in enumerate(losses.tolist()):
        records += [trainer.update(skipped=step == 0), trainer.scalars({"loss": loss, "lr": 0.1})]
    _ingest(client, trainer, records, headers=(attempt, trainer.stream))
    return str(trainer.run_id)


def test_runs_have_a_distance_from_their_baseline(client: TestClient) -> None:
    """Each run reports where it leaves the band of the tagged or chosen baseline, with scale and skips there."""
    seed = np.random.default_rng(0)
    base, near, far = (1 + 0.05 * seed.normal(size=200) for _ in range(3))
    far[120:] += 1
    runs = [_with_losses(client, "near", near), _with_losses(client, "far", far)]
    base_id = _with_losses(client, "base", base, tags=("baseline",))
    among = ",".join([*runs, str(uuid4()), base_id])
    answer = client.get(f"/api/v1/compare?runs={among}").json()
    assert (answer["baseline"], answer["name"]) == (base_id, "loss")
    stays, leaves, gone, itself = answer["distances"]
    assert (stays["words"], stays["until"]) == ("loss stays within the band, to step 199", 199)
    assert (abs(leaves["step"] - 120) < 17, leaves["side"]) == (True, "above")
    assert (leaves["scale"], leaves["skipped"]) == (1024.0, 1)
    assert "1 skipped step before" in leaves["words"]
    assert (gone, itself["words"]) == (None, "baseline")

    (_, circle) = client.get(f"/api/v1/compare/figures/logged?runs={among}").json()["data"][-2:]
    assert circle["mode"] == "markers"
    other = client.get(f"/api/v1/compare?runs={among}&baseline={runs[1]}&name=lr").json()
    assert (other["baseline"], other["name"]) == (runs[1], "lr")
    assert other["distances"][0]["words"] == "lr stays within the band, to step 199"


def test_a_distance_has_the_scale_of_the_scaler_that_logged(client: TestClient) -> None:
    """A GAN's distance names the scale of the scaler of the loss, and its skips up to the step where the loss left."""
    losses = 1 + 0.05 * np.random.default_rng(0).normal(size=200)
    base = _with_losses(client, "base", losses, tags=("baseline",))
    trainer, batch = adversarial([*losses[:120], *(losses[120:] + 1)], skipped=[10, 700])
    client.app.state.service.store.ingest(batch)  # type: ignore[attr-defined]
    answer = client.get(f"/api/v1/compare?runs={base},{trainer.run_id}&name=loss").json()
    leaves = answer["distances"][1]
    assert abs(leaves["step"] - 120) < 17
    assert (leaves["scale"], leaves["skipped"]) == (8.0, 0)
    assert f"from step {leaves['step']} of generator: scale 8 = 2³" in leaves["words"]


def test_a_name_that_no_run_logged_is_the_one_that_is_shown(
    client: TestClient, pair: list[str]
) -> None:
    """The chart of a name that none of the runs logged has that name as title and choice, and says why it is empty."""
    ask = f"/api/v1/compare/figures/logged?runs={','.join(pair)}&name=accuracy"
    meta = client.get(ask).json()["layout"]["meta"]
    assert (meta["title"], meta["choices"][0]["chosen"]) == ("accuracy", "accuracy")
    assert meta["choices"][0]["options"] == [["loss", "loss"], ["accuracy", "accuracy"]]
    assert meta["empty"] == "None of these runs has logged it."


def test_without_a_baseline_there_is_no_distance(client: TestClient, pair: list[str]) -> None:
    """Without a baseline among the runs there are no distances. Too few loss values are reported as such."""
    among = ",".join(pair)
    for ask in ("", f"&baseline={uuid4()}"):
        answer = client.get(f"/api/v1/compare?runs={among}{ask}").json()
        assert (answer["baseline"], answer["distances"]) == (None, [None, None])
    answer = client.get(f"/api/v1/compare?runs={among}&baseline={pair[0]}").json()
    assert answer["distances"][1]["words"] == "too few values of loss to compare"


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("runs=", 422, "runs"),
        ("runs=x", 422, "runs"),
        ("runs=" + ",".join(f"{each:032x}" for each in range(21)), 422, "runs"),
        (f"runs={0:032x}", 404, None),
    ],
)
def test_what_cannot_be_compared_is_said(
    client: TestClient, query: str, status: int, field: str | None
) -> None:
    """No run, an invalid id or more than twenty runs get 422. Only missing runs get 404."""
    answer = client.get(f"/api/v1/compare/figures/scale?{query}")
    assert (answer.status_code, answer.json().get("field")) == (status, field)


def test_a_run_that_is_deleted_while_it_is_compared_is_as_one_that_is_not_there(
    client: TestClient, pair: list[str]
) -> None:
    """The others are compared again without it. A NotFound for runs that all exist is passed on."""
    store = client.app.state.service.store  # type: ignore[attr-defined]
    gone, kept = map(UUID, pair)

    def compared(there: Sequence[UUID | None]) -> list[str | None]:
        if there[0] is not None:
            assert client.delete(f"/api/v1/runs/{gone}").status_code == 204
            store.case(gone)
        return [run and run.run_id for run in comparing.compare(store, there).runs]

    assert comparing.despite_deletion(store, [gone, kept], compared) == [None, str(kept)]
    with pytest.raises(NotFound, match="no figure 'none'"):
        comparing.despite_deletion(
            store, [kept], lambda there: comparing.draw(store, there, "none", View())
        )
