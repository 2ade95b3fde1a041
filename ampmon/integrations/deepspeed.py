"""DeepSpeed's own loss scaling, ZeRO 0 to 3: each call of its optimizer's `_update_scale` is an update of a stream.

Imports nothing of DeepSpeed: the engine brings it.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from ampmon.feed import Feed, Policy, stream


_FEED = "_ampmon_feed"


def watch(engine: Any, *, name: str = "deepspeed") -> Feed:
    """Watch the loss scale of an engine of `deepspeed.initialize`: its scale and skips, not its gradients.

    A second call for the same engine returns the stream that there is. Raises TypeError for an engine that scales no
    loss, as in bf16 and fp32. May write to disk and start the sender process; from here on nothing of ampmon's raises,
    syncs or blocks.
    """
    optimizer = engine.optimizer
    update = getattr(optimizer, "_update_scale", None)
    scaler = _scaler(optimizer)
    if update is None or not hasattr(scaler, "cur_scale") or not engine.fp16_enabled():
        raise TypeError(
            "ampmon.integrations.deepspeed.watch: this engine scales no loss. Loss scaling needs "
            '"fp16": {"enabled": true} in the DeepSpeed configuration.'
        )
    if (known := getattr(optimizer, _FEED, None)) is not None:
        assert isinstance(known, Feed)
        return known
    feed = stream(name, policy=_policy(scaler))

    @functools.wraps(update)
    def update_scale(overflow: Any = False, *args: Any, **kwargs: Any) -> Any:
        before = scaler.cur_scale
        try:  # DeepSpeed raises where it would have to go below its least scale: that was a skip, too
            return update(overflow, *args, **kwargs)
        finally:
            feed.update(before, scaler.cur_scale, overflow)

    optimizer._update_scale = update_scale
    setattr(optimizer, _FEED, feed)
    return feed


def _scaler(optimizer: Any) -> Any:
    """What holds the scale: the optimizers of stage 0 keep it in a record, those of other stages in a loss scaler."""
    return getattr(optimizer, "loss_scale_config", None) or getattr(optimizer, "loss_scaler", None)


def _policy(scaler: Any) -> Policy:
    dynamic = getattr(scaler, "dynamic", getattr(scaler, "dynamic_loss_scale", False))
    fixed = Policy(
        scaler=f"deepspeed.{type(scaler).__name__}",
        init_scale=float(scaler.cur_scale),
        growth_factor=1.0,
        backoff_factor=1.0,
        growth_interval=0,
    )
    if not dynamic:
        return fixed
    least = getattr(scaler, "min_scale", getattr(scaler, "min_loss_scale", 0.0))
    return replace(
        fixed,
        growth_factor=float(scaler.scale_factor),
        backoff_factor=1.0 / float(scaler.scale_factor),
        growth_interval=int(scaler.scale_window),
        hysteresis=max(int(getattr(scaler, "delayed_shift", 1)), 1),
        min_scale=float(least),
    )
