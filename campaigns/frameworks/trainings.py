"""Framework trainings, each as in its own documentation, and what must hold of them under `ampmon run`."""

from __future__ import annotations

import json
from pathlib import Path

from campaigns.frameworks import HERE, SET, skips, train_alike


TRAININGS: dict[str, tuple[str, int, str]] = {
    "trainer": ("accelerate", 12, "bert.embeddings.word_embeddings.weight"),
    "accelerate": ("accelerate", 24, "0.weight"),
    "lightning flag": ("lightning", 32, "net.0.weight"),
    "lightning plugin": ("lightning", 32, "net.0.weight"),
    "lightning own": ("lightning", 32, "net.0.weight"),
    "fabric": ("lightning", 24, "0.weight"),
    "ignite": ("cuda", 24, "0.weight"),
    "monai": ("cuda", 12, "model.0.conv.weight"),
    "mmengine": ("mmengine", 24, "net.0.weight"),
    "timm": ("cuda", 12, "conv1.1.weight"),
    "fastai": ("fastai", 24, "0.weight"),
    "trl": ("accelerate", 12, "model.embed_tokens.weight"),
    "ultralytics": ("ultralytics", 12, "DetectionModel.model.0.conv.weight"),
    "nnunet": ("nnunet", 12, "encoder.stages.0.0.convs.0.conv.weight"),
}
"""For each: what the shim replaces, the number of updates, and the name of the first parameter."""
if SET == "oldest":  # its optimizer has the biases first
    TRAININGS["ultralytics"] = ("ultralytics", 12, "model.model.0.bn.bias")
MADE_BY = {
    "trainer": " (transformers.Trainer)",
    "trl": " (transformers.Trainer)",
    "accelerate": " (accelerate.Accelerator)",
    "lightning": " (lightning.Trainer)",
    "fabric": " (lightning.Fabric)",
}
"""The end of the scaler's name. It selects the framework in whose settings a fix is written."""


def assert_unchanged(training: str, folder: Path) -> None:
    """Check that a monitored training ends as an unmonitored one, and is recorded completely."""
    shim, updates, first = TRAININGS[training]
    name, *how = training.split()
    script = str(HERE / f"train_{name}.py")
    (steps,), (recorded,) = train_alike(folder, lambda place: [script, str(place), *how], shim=shim)
    assert len(recorded.updates) == updates
    assert 0 < sum(skips(recorded)) == updates - steps < updates
    assert recorded.header().parameters[0].name == first
    assert recorded.attempt.name == f"train_{name}"
    assert recorded.header().scaler.endswith(f"GradScaler{MADE_BY.get(name, '')}")
    assert recorded.events("error") == []
    assert not (folder / "False" / "ampmon").exists()
    if name == "accelerate":
        assert skips(recorded) == json.loads((folder / "True" / "skipped.json").read_text())
