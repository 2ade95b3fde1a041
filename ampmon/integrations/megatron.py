"""Megatron-core's own loss scaling: each call of a `DynamicGradScaler.update(found_inf)` is an update of a stream.

Imports nothing of Megatron: the optimizer brings it.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from ampmon.feed import Feed, Policy, stream


_FEED = "_ampmon_feed"


def watch(optimizer: Any, *, name: str = "megatron") -> list[Feed]:
    """Watch the loss scales of an optimizer of `get_megatron_optimizer`: scale and skips, not gradients.

    A stream for each scaler; a chained optimizer has several, and steps only where none of them found an overflow. A
    second call returns the streams that there are. Raises TypeError for an optimizer that scales no loss. Reads each
    scaler's scale, which syncs once; may write to disk and start the sender process; from here on nothing of ampmon's
    raises, syncs or blocks.
    """
    chained = getattr(optimizer, "chained_optimizers", None) or [optimizer]
    found = (getattr(each, "grad_scaler", None) for each in chained)
    scalers = {id(each): each for each in found if each is not None}
    if not scalers:
        raise TypeError(
            "ampmon.integrations.megatron.watch: this optimizer scales no loss. Loss scaling needs fp16 (--fp16)."
        )
    return [_feed(scaler, name) for scaler in scalers.values()]


def _feed(scaler: Any, name: str) -> Feed:
    if (known := getattr(scaler, _FEED, None)) is not None:
        assert isinstance(known, Feed)
        return known
    feed = stream(name, policy=_policy(scaler))
    stock = scaler.update

    @functools.wraps(stock)
    def update(found_inf: Any, *args: Any, **kwargs: Any) -> Any:
        before = scaler.scale
        try:
            return stock(found_inf, *args, **kwargs)
        finally:
            feed.update(before, scaler.scale, found_inf)

    scaler.update = update
    setattr(scaler, _FEED, feed)
    return feed


def _policy(scaler: Any) -> Policy:
    fixed = Policy(
        scaler=f"megatron.{type(scaler).__name__}",
        init_scale=float(scaler.scale),
        growth_factor=1.0,
        backoff_factor=1.0,
        growth_interval=0,
    )
    if not hasattr(scaler, "growth_interval"):  # a ConstantGradScaler
        return fixed
    return replace(
        fixed,
        growth_factor=float(scaler.growth_factor),
        backoff_factor=float(scaler.backoff_factor),
        growth_interval=int(scaler.growth_interval),
        hysteresis=int(scaler.hysteresis),
        min_scale=float(scaler.min_scale),
    )
