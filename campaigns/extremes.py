"""Unusual runs that the page must still show correctly, posted the way a sender posts them.

They have long, right-to-left or markup names; no data, little or a lot; a dead scale; ranks that disagree; gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from uuid import UUID, uuid4

import msgspec
import numpy as np

from ampmon import wire
from batches import PARAMETERS, Trainer, activations, statistics


LONG_NAME = "x" * 200
MARKUP = '<img src=x onerror="window.harmed=1"><script>window.harmed=1</script>&amp;{{7*7}}'
FROM_THE_RIGHT = "ניסוי תישילש הצירה עם fp16 — تجربة طويلة جدا للتدريب بنصف الدقة"
MANY = 5000
RANKS = 4

Post = Callable[[wire.Batch], None]


def long_names(trainer: Trainer, post: Post) -> None:
    """Parameter names without a place to break the line."""
    names = ("layer." * 30, "y" * 200)
    _with_parameters(trainer, post, [wire.Parameter(name, (80,), "float16") for name in names])


def unnamed(trainer: Trainer, post: Post) -> None:
    """An ordinary run: only its name matters."""
    post(trainer.batch(trainer.updates(60, skipped=(20, 41), sampled=range(0, 60, 10))))
    post(trainer.batch([trainer.scalars({"loss": 0.5, "lr": 1e-4})]))


def nothing(trainer: Trainer, post: Post) -> None:
    post(trainer.batch([trainer.event("init")]))


def one_update(trainer: Trainer, post: Post) -> None:
    post(trainer.batch(trainer.updates(1, sampled=(0,))))


def one_parameter(trainer: Trainer, post: Post) -> None:
    _with_parameters(trainer, post, [wire.Parameter("weight", (80,), "float16")])


def many_parameters(trainer: Trainer, post: Post) -> None:
    names = (
        f"model.layers.{place // 50}.experts.{place % 50}.down_proj.weight" for place in range(MANY)
    )
    _with_parameters(trainer, post, [wire.Parameter(name, (80,), "float16") for name in names])


def markup(trainer: Trainer, post: Post) -> None:
    """Put markup in every name that the user chooses."""
    error = trainer.event("error", where=MARKUP, type=MARKUP, message=MARKUP)
    evil = [wire.Parameter(MARKUP, (80,), "float16"), *PARAMETERS[1:]]
    _with_parameters(trainer, post, evil, trainer.scalars({MARKUP: 1.0}), error)


def dead_scale(trainer: Trainer, post: Post) -> None:
    """Every update skips, and the scale halves until it is 0 in float32."""
    scales = [2.0 ** (16 - step) for step in range(166)]
    scales += [0.0] * 40
    post(trainer.batch([trainer.update(skipped=True, scale=scale) for scale in scales]))


def ranks_that_disagree(trainer: Trainer, post: Post) -> None:
    """Rank 2 of four differs in its skips, and in its scale after 50 updates. Rank 3 stops after 30 updates."""
    for rank in range(RANKS):
        other = replace(trainer, rank=rank, world_size=RANKS, attempt_id=uuid4())
        skipped = (50,) if rank == 2 else (20,)
        updates = other.updates(30 if rank == 3 else 100, skipped=skipped, sampled=(0, 40, 80))
        changed = [
            msgspec.structs.replace(each, scale=each.scale / 4, scale_after=each.scale_after / 4)
            if rank == 2 and each.ordinal > 50
            else each
            for each in updates
        ]
        post(other.batch(changed))


def gaps(trainer: Trainer, post: Post) -> None:
    """The second half of every hundred updates is lost."""
    for _ in range(5):
        updates = trainer.updates(100, skipped=(30,), sampled=range(0, 100, 10))
        post(trainer.batch(updates[:50]))


def not_finite(trainer: Trainer, post: Post) -> None:
    """NaN losses and non-finite activations."""
    exploded = activations(forward=np.array([2.0, np.inf, np.nan]).tobytes(), loss=np.nan)
    post(trainer.batch(trainer.updates(20, sampled=range(0, 20, 5))))
    kinds: dict[str, wire.NonFinite] = {"loss": "nan"}
    for _ in range(10):
        update = trainer.update(skipped=True, activations=exploded)
        loss = trainer.scalars({"loss": None}, kinds=kinds)
        post(trainer.batch([update, loss]))


EXTREMES: dict[str, Callable[[Trainer, Post], None]] = {
    LONG_NAME: long_names,
    MARKUP: markup,
    FROM_THE_RIGHT: unnamed,
    "no data": nothing,
    "one update": one_update,
    "one parameter": one_parameter,
    "5000 parameters": many_parameters,
    "a dead scale": dead_scale,
    "ranks that disagree": ranks_that_disagree,
    "gaps": gaps,
    "not finite": not_finite,
}
"""By the name of the run."""


def make(post: Post, names: Iterable[str] = EXTREMES, project: str = "extreme") -> dict[str, UUID]:
    """Post one run for each name, and return the run ids by name. Takes a second or two."""
    made = {}
    for name in names:
        trainer = Trainer(name=name, project=project)
        EXTREMES[name](trainer, post)
        made[name] = trainer.run_id
    return made


def _with_parameters(
    trainer: Trainer, post: Post, parameters: list[wire.Parameter], *more: wire.Record
) -> None:
    count = len(parameters)
    header = msgspec.structs.replace(trainer.stream, parameters=tuple(parameters), modules=())
    updates = [
        trainer.update(
            gradients=statistics(count, seed=place).to_wire() if place % 10 == 0 else None
        )
        for place in range(30)
    ]
    culprit = (wire.Culprit(count - 1, 3, 0),)
    step = wire.OptimizerStep(
        optimizer="SGD",
        path="plain",
        skipped=True,
        culprits=culprit,
        culprit_order="learned",
        culprit_parameters=1,
    )
    skip = trainer.update(skipped=True, optimizers=(step,))
    post(trainer.batch([*more, *updates, skip], headers=(trainer.attempt, header)))
