"""Unmodified scripts and commands that frameworks bring themselves, under `ampmon run`.

They come from the installed package or its source distribution, and their data from data.py. As in
test_unchanged_scripts.py, shim/sitecustomize.py enables fp16 without CUDA, with and without ampmon. It also sets seeds,
and stores the parameters of each optimizer that stepped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from campaigns.frameworks import PYTHON, ROOT, SET, SOURCES, make, skips, train_alike


@dataclass(frozen=True)
class Own:
    """A framework's script: its arguments, and what must be recorded of it."""

    words: str
    data: str | None
    shim: str
    updates: int
    parameter: str
    """The name of the first parameter."""
    run: str
    """The name of the run."""
    unscaled: int = 0
    """Steps it makes without a scaler."""


OWN = {
    "Ignite's examples/cifar10/main.py": Own(
        "{ignite}/cifar10/main.py run --data_path {data}/data --output_path {folder}/output --with_amp "
        "--model shufflenet_v2_x0_5 --batch_size 8 --num_epochs 4 --num_warmup_epochs 1 --num_workers 0 "
        "--validate_every 9",
        data="cifar",
        shim="ignite",
        updates=20,
        parameter="conv1.0.weight",
        run="main",
    ),
    "accelerate test": Own(
        "{bin}/accelerate test",
        data=None,
        shim="accelerate",
        updates=48,
        parameter="RegressionModel-2.a",
        run="test_script",
        unscaled=72,
    ),
    "trl sft": Own(
        "{bin}/trl sft --model_name_or_path {data}/model --dataset_name {data}/data --output_dir {folder}/output "
        "--max_steps 12 --per_device_train_batch_size 4 --learning_rate 1e-3 --logging_steps 3 --save_strategy no "
        "--fp16 --bf16 False --use_cpu --report_to none",
        data="sentences",
        shim="accelerate",
        updates=12,
        parameter="model.embed_tokens.weight",
        run="sft",
    ),
    "yolo detect train": Own(
        "{bin}/yolo detect train model=yolo11n.yaml data={data}/squares.yaml epochs=3 imgsz=32 batch=4 nbs=4 workers=0 "
        "device=cpu amp=True val=False plots=False project={folder}",
        data="squares",
        shim="ultralytics",
        updates=12,
        parameter="DetectionModel.model.0.conv.weight",
        run="yolo",
    ),
    "nnUNetv2_train": Own(
        "{bin}/nnUNetv2_train 1 2d all -device cpu -tr Short",
        data="discs",
        shim="nnunet",
        updates=12,
        parameter="encoder.stages.0.0.convs.0.conv.weight",
        run="nnUNetv2_train",
    ),
    "python -m monai.bundle": Own(
        "-m monai.bundle run --config_file {data}/train.json",
        data="bundle",
        shim="cuda",
        updates=12,
        parameter="model.0.conv.weight",
        run="bundle",
    ),
}

if SET == "oldest":
    del OWN["Ignite's examples/cifar10/main.py"]  # its source distribution has no examples
    del OWN["accelerate test"]  # it checks for CUDA before it tries fp16
    del OWN["nnUNetv2_train"]  # it accepts no custom trainer
    OWN["yolo detect train"] = replace(OWN["yolo detect train"], parameter="model.model.0.bn.bias")


@pytest.mark.parametrize("script", OWN)
def test_a_framework_s_own_script_is_recorded_and_ends_in_the_same_weights(
    script: str, tmp_path: Path
) -> None:
    """All updates are recorded, skips match torch's own count, and weights are bit for bit as without ampmon."""
    own = OWN[script]
    data = tmp_path / "data"
    make(own.data, data) if own.data else data.mkdir()
    ignite = next(SOURCES.glob("pytorch_ignite-*/examples"), None)
    places = {"data": data, "bin": PYTHON.parent, "ignite": ignite}
    (steps,), (recorded,) = train_alike(
        tmp_path,
        lambda folder: own.words.format(folder=folder, **places).split(),
        shim=own.shim,
        data=data,
    )
    assert len(recorded.updates) == own.updates
    assert sum(skips(recorded)) == own.updates + own.unscaled - steps < own.updates
    assert any(skips(recorded)) is (script != "accelerate test")
    assert recorded.header().parameters[0].name == own.parameter
    assert recorded.attempt.name == own.run
    assert recorded.events("error") == []


def test_the_documentation_lists_them() -> None:
    """docs/measurements.md has a row for each script, with its number of updates."""
    page = (ROOT / "docs" / "measurements.md").read_text()
    assert [name for name, own in OWN.items() if f"| {name} | {own.updates} |" not in page] == []
