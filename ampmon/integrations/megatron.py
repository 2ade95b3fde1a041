"""Records Megatron-core's own loss scaling: an update is a call of `DynamicGradScaler.update(found_inf)`.

Measures gradients before the optimizer's `_unscale_main_grads_and_check_for_nan`. Does not import Megatron.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

from ampmon.client.feed import Feed, Policy
from ampmon.client.troubles import warn
from ampmon.integrations.patching import feed_from
from ampmon.system import signals
from ampmon.training import built


_UNSCALE = "_unscale_main_grads_and_check_for_nan"
_MODEL_TO_MAIN = (
    ("float16_groups", "fp32_from_float16_groups"),
    ("model_float16_groups", "shard_fp32_from_float16_groups"),
    ("model_fp32_groups", "shard_fp32_groups"),
)
"""Attributes with the model's parameters, and with what the optimizer holds instead: whole, or this rank's shards."""


def watch(optimizer: Any, *, name: str = "megatron") -> list[Feed]:
    """Watch an optimizer of `get_megatron_optimizer`: its loss scales, and its gradients while they are scaled.

    Returns a stream for each scaler. A chained optimizer has several, and steps only if none of them found an overflow.
    A second call returns the existing streams. Raises TypeError for an optimizer that scales no loss.

    Reads each scaler's scale, which syncs once. May write to disk and start the sender process. Afterwards ampmon never
    raises, syncs or blocks.
    """
    chained = getattr(optimizer, "chained_optimizers", None) or [optimizer]
    scaled = {
        id(scaler): (each, scaler)
        for each in chained
        if (scaler := getattr(each, "grad_scaler", None)) is not None
    }
    if not scaled:
        raise TypeError(
            "ampmon.integrations.megatron.watch: this optimizer scales no loss. Loss scaling needs fp16 (--fp16)."
        )
    feeds = []
    for each, scaler in scaled.values():
        read = partial(getattr, scaler, "scale")
        feed = feed_from(scaler, "update", read, name, _policy(scaler))
        try:
            _watch_gradients(each, feed)
        except Exception as error:
            signals.let_through(error)
            warn(f"ampmon: cannot sample the gradients of Megatron's optimizer: {error}")
        feeds.append(feed)
    return feeds


def _watch_gradients(optimizer: Any, feed: Feed) -> None:
    """Have the gradients measured before they are unscaled. Stub optimizers have none."""
    stock = getattr(optimizer, _UNSCALE, None)
    inner = getattr(optimizer, "optimizer", None)
    if stock is None or inner is None or feed.watches_gradients:
        return
    # Ranks that check gradients together hold different ones. All other ranks hold the same, after a reduction.
    group = (
        getattr(optimizer, "get_grad_stats_parallel_group", None)
        or optimizer.get_model_parallel_group
    )
    feed.watch(inner, partial(_names, optimizer), sharded=group().size() > 1)

    @functools.wraps(stock)
    def unscale(*args: Any, **kwargs: Any) -> Any:
        feed.unscaling()
        found = stock(*args, **kwargs)
        if found:
            feed.overflowed()
        return found

    setattr(optimizer, _UNSCALE, unscale)


def _names(optimizer: Any) -> dict[int, str]:
    """The model's names for the parameters that the optimizer holds in place of the model's, by id."""
    known = built.names()
    return {id(main): known[id(each)] for each, main in _pairs(optimizer) if id(each) in known}


def _pairs(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    for of_model, of_optimizer in _MODEL_TO_MAIN:
        groups = getattr(optimizer, of_model, ()), getattr(optimizer, of_optimizer, ())
        yield from zip(*map(chain.from_iterable, groups), strict=False)


def _policy(scaler: Any) -> Policy:
    rules: dict[str, Any] = {"growth_factor": 1.0, "backoff_factor": 1.0, "growth_interval": 0}
    if hasattr(scaler, "growth_interval"):  # not a ConstantGradScaler
        rules = {
            "growth_factor": float(scaler.growth_factor),
            "backoff_factor": float(scaler.backoff_factor),
            "growth_interval": int(scaler.growth_interval),
            "hysteresis": int(scaler.hysteresis),
            "min_scale": float(scaler.min_scale),
        }
    name = f"megatron.{type(scaler).__name__}"
    return Policy(scaler=name, init_scale=float(scaler.scale), **rules)
