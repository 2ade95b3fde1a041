"""Records DeepSpeed's own loss scaling, ZeRO 0 to 3: an update is a call of its optimizer's `_update_scale`.

Does not import DeepSpeed.
"""

from __future__ import annotations

from typing import Any

from ampmon.client.feed import Feed, Policy
from ampmon.integrations.patching import feed_from


def watch(engine: Any, *, name: str = "deepspeed") -> Feed:
    """Watch the loss scale of an engine of `deepspeed.initialize`: its scale and skips, not its gradients.

    A second call for the same engine returns the existing stream. Raises TypeError for an engine that scales no loss,
    as in bf16 and fp32. May write to disk and start the sender process. Afterwards ampmon never raises, syncs or
    blocks.
    """
    optimizer = engine.optimizer
    scaler = _scaler(optimizer)
    scales = hasattr(optimizer, "_update_scale") and hasattr(scaler, "cur_scale")
    if not scales or not engine.fp16_enabled():
        raise TypeError(
            "ampmon.integrations.deepspeed.watch: this engine scales no loss. Loss scaling needs "
            '"fp16": {"enabled": true} in the DeepSpeed configuration.'
        )
    return feed_from(optimizer, "_update_scale", lambda: scaler.cur_scale, name, _policy(scaler))


def _scaler(optimizer: Any) -> Any:
    """The object with the scale: in stage 0 a record of the optimizer or the optimizer itself, else a loss scaler."""
    for name in ("loss_scale_config", "loss_scaler"):
        if hasattr(held := getattr(optimizer, name, None), "cur_scale"):
            return held
    return optimizer


def _policy(scaler: Any) -> Policy:
    rules: dict[str, Any] = {"growth_factor": 1.0, "backoff_factor": 1.0, "growth_interval": 0}
    # Stage 0 has other names for some settings.
    if getattr(scaler, "dynamic", getattr(scaler, "dynamic_loss_scale", False)):
        factor = float(scaler.scale_factor)
        rules = {
            "growth_factor": factor,
            "backoff_factor": 1.0 / factor,
            "growth_interval": int(scaler.scale_window),
            "hysteresis": max(int(getattr(scaler, "delayed_shift", 1)), 1),
            "consecutive": bool(getattr(scaler, "consecutive_hysteresis", False)),
            "min_scale": float(
                getattr(scaler, "min_scale", getattr(scaler, "min_loss_scale", 0.0))
            ),
        }
    name = f"deepspeed.{type(scaler).__name__}"
    return Policy(scaler=name, init_scale=float(scaler.cur_scale), **rules)
