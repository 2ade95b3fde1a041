"""Code that the fixes of several findings have in common. `ampmon.GradScaler` has only the arguments that change."""

from __future__ import annotations


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
