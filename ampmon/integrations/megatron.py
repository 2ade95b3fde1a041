"""Megatron-core's own loss scaling: each call of a `DynamicGradScaler.update(found_inf)` is an update of a stream.

Imports nothing of Megatron: the optimizer brings it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ampmon.client.feed import Feed, Policy
from ampmon.integrations.patching import feed_from


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
    return [
        feed_from(each, "update", partial(getattr, each, "scale"), name, _policy(each))
        for each in scalers.values()
    ]


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
