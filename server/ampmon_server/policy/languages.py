"""Code to write instead, in the settings of the framework that scales the loss, where that is not torch's scaler."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from ampmon_server.case import Policy


NO_DEVICE = "none"
"""What `ampmon.stream` tells for the device of a scaler: there is none of torch's."""
_TORCHS = re.compile(r"\bscaler\b|GradScaler|load_state_dict")
_ARGUMENT = re.compile(r"\b(init_scale|growth_interval)=(2\.0\*\*)?(-?[\d.]+)")


def _deepspeed(settings: Mapping[str, float]) -> str:
    names = {"init_scale": "initial_scale_power", "growth_interval": "loss_scale_window"}
    told = {**settings}
    if "init_scale" in told:
        told["init_scale"] = max(round(math.log2(told["init_scale"])), 0)
    inner = ", ".join(f'"{names[name]}": {value:.0f}' for name, value in told.items())
    return f'"fp16": {{"enabled": true, {inner}}}  # in the DeepSpeed configuration'


def _megatron(settings: Mapping[str, float]) -> str:
    names = {"init_scale": "--initial-loss-scale", "growth_interval": "--loss-scale-window"}
    return " ".join(f"{names[name]} {value:.0f}" for name, value in settings.items())


_LANGUAGES: Mapping[str, Callable[[Mapping[str, float]], str]] = {
    "deepspeed": _deepspeed,
    "megatron": _megatron,
}


def in_settings_of(policy: Policy, code: str) -> str:
    """Code for torch's GradScaler, as who has none writes it (`ampmon.stream`); as it is for who has one."""
    if policy.device != NO_DEVICE:
        return code
    found = _ARGUMENT.findall(code)
    settings = {
        name: 2.0 ** float(value) if power else float(value) for name, power, value in found
    }
    kept = [line for line in code.splitlines() if not _TORCHS.search(line)]
    lines = kept if any(not line.startswith("#") for line in kept) else []
    language = _LANGUAGES.get(policy.scaler_type.partition(".")[0])
    if settings and language is not None:
        lines = [language(settings), *lines]
    return "\n".join(lines)
