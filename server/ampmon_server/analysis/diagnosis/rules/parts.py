"""What rules have in common: a rule for a single scaler, and code of their fixes.

In that code, `ampmon.GradScaler` has only the arguments that change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps

import msgspec

from ampmon.wire import Finding
from ampmon_server.analysis.policy.languages import in_settings_of, settings_in
from ampmon_server.model.case import Case, ScalerCase
from ampmon_server.model.thresholds import Thresholds


LOOK = (
    "# See which module is the first that is not finite:\n"
    "scaler = ampmon.GradScaler(model=model, monitor=ampmon.Config(activations=1))"
)
LAYER_IN_FP32 = (
    'with torch.autocast("cuda", enabled=False):  # in forward(), around {where}\n'
    "    out = layer(x.float())"
)
CLIP = (
    "scaler.unscale_(optimizer)  # before scaler.step(optimizer)\n"
    "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)"
)
GO_BACK = (
    "# Go back to a checkpoint saved before step {first}. Use a smaller learning rate, and clip gradients:\n"
    f"{CLIP}"
)
LIMIT = (
    "# Inspect these batches. If they are correct, limit their weight before backward():\n"
    "size = loss.detach().abs()\n"
    "usual = size if usual is None else usual  # None before the loop\n"
    "usual = usual.lerp(torch.where(size <= {most} * usual, size, 1.2 * usual), 0.05)\n"
    "loss = loss * torch.where(size > {most} * usual, usual / size, 1.0)"
)
BF16 = (
    'with torch.autocast("cuda", dtype=torch.bfloat16):\n'
    "    loss = criterion(model(inputs), targets)\n"
    "scaler = ampmon.GradScaler(enabled=False)  # bf16 needs none"
)
RESTART = (
    "state = scaler.state_dict()\n"
    'scaler.load_state_dict({{**state, "growth_interval": {growth_interval}, "_growth_tracker": 0}})'
)
"""Sets another interval in a running job. With a growth tracker past the interval, torch would never grow again."""


def each_scaler(
    rule: Callable[[ScalerCase, Thresholds], Finding | None],
) -> Callable[[Case, Thresholds], Iterator[Finding]]:
    """Turn a rule for a scaler into one for a run, over all scalers that have updates."""

    @wraps(rule)  # the module names a rule that fails
    def examine(case: Case, thresholds: Thresholds) -> Iterator[Finding]:
        for scaler in case.scalers:
            if len(scaler.recent) and (finding := rule(scaler, thresholds)):
                yield fitted(finding, scaler)

    return examine


def fitted(finding: Finding, scaler: ScalerCase) -> Finding:
    """Return the finding as one of this scaler: its fix is rewritten for the script, and has its settings beside it."""
    fix = in_settings_of(scaler.policy, finding.fix)
    setting = settings_in(finding.fix)
    return msgspec.structs.replace(finding, scaler=scaler.name, fix=fix, setting=setting)
