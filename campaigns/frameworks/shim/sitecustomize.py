"""For tests only: enables fp16 without CUDA, and counts steps. Python loads it as `sitecustomize`.

Accelerate, Lightning and MMEngine refuse fp16 on a CPU, Ultralytics and nnU-Net skip it there, and Ignite, MONAI and
fastai request CUDA's autocast. The shim runs their CUDA path on CPU tensors, with torch's own `GradScaler("cpu")` and
autocast. `FRAMEWORKS_SHIM` selects the patch. `FRAMEWORKS_COUNT` names a folder in which each process leaves its number
of optimizer steps, counted by torch's own hook without ampmon. If the script leaves no weights there, it leaves its
parameters too. Then seeds are set as well.
"""

from __future__ import annotations

import atexit
import json
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path


STEPS: list[int] = []
OPTIMIZERS: list = []


def patch_accelerate() -> None:
    import torch
    from accelerate import Accelerator

    init = Accelerator.__init__

    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)
        if self.state.mixed_precision == "fp16" and self.scaler is None:
            handler = self.scaler_handler
            arguments = handler.to_kwargs() if handler is not None else {}
            self.native_amp = True
            self.scaler = torch.amp.GradScaler("cpu", **arguments)

    Accelerator.__init__ = __init__


def patch_lightning() -> None:
    from lightning.fabric.connector import _Connector
    from lightning.fabric.plugins import MixedPrecision as OfFabric
    from lightning.pytorch.plugins import MixedPrecision
    from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector

    def on_a_cpu(kind, flag, plugin):
        stock = kind._check_and_init_precision

        def _check_and_init_precision(self):
            if getattr(self, flag) == "16-mixed" and self._accelerator_flag == "cpu":
                return plugin("16-mixed", "cpu")
            return stock(self)

        kind._check_and_init_precision = _check_and_init_precision

    on_a_cpu(_AcceleratorConnector, "_precision_flag", MixedPrecision)
    on_a_cpu(_Connector, "_precision_input", OfFabric)


def patch_cuda() -> None:
    """Replace CUDA's autocast and scaler with those of the CPU."""
    import torch

    autocast, scaler = torch.autocast.__init__, torch.amp.GradScaler.__init__

    def of_autocast(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        autocast(self, device_type, dtype, enabled, cache_enabled)

    def of_scaler(self, device="cuda", *args, **kwargs):
        scaler(self, "cpu", *args, **kwargs)

    torch.autocast.__init__, torch.amp.GradScaler.__init__ = of_autocast, of_scaler


def patch_ignite() -> None:
    """Also let its example's stand-in for CIFAR-10 pass torchvision's checksums."""
    patch_cuda()
    cifar = import_module("torchvision.datasets.cifar")
    cifar.check_integrity = lambda path, md5=None: Path(path).is_file()


def patch_mmengine() -> None:
    patch_cuda()
    from mmengine.optim.optimizer import amp_optimizer_wrapper

    amp_optimizer_wrapper.is_cuda_available = lambda: True


def patch_fastai() -> None:
    """Also count the steps of fastai's own optimizers, which torch's hook does not see."""
    patch_cuda()
    from fastai.optimizer import Optimizer

    step = Optimizer.step

    def of_fastai(self, *args):
        STEPS.append(1)
        step(self, *args)

    Optimizer.step = of_fastai


def patch_ultralytics() -> None:
    patch_cuda()
    from types import SimpleNamespace

    import torch
    from ultralytics.data import utils
    from ultralytics.engine import trainer

    torch.set_autocast_dtype("cpu", torch.float16)
    trainer.check_amp = lambda model: True  # the original compares with a downloaded model
    if find_spec("ultralytics.utils.nms") is not None:
        from ultralytics.utils import nms

        # Hide an imported torchvision, so that Ultralytics uses its own operator.
        nms.sys = SimpleNamespace(modules={})
    utils.check_font = lambda font: None  # the original downloads one


def patch_nnunet() -> None:
    from functools import partial

    import torch
    from nnunetv2.training.nnUNetTrainer import nnUNetTrainer as module

    init = module.nnUNetTrainer.__init__

    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.grad_scaler = torch.amp.GradScaler("cpu")

    # nnU-Net reads the signature, and looks its names up in the original.
    __init__.__wrapped__ = init
    module.nnUNetTrainer.__init__ = __init__
    module.dummy_context = partial(torch.autocast, "cpu", torch.float16)


PATCHES = {
    "accelerate": patch_accelerate,
    "lightning": patch_lightning,
    "cuda": patch_cuda,
    "ignite": patch_ignite,
    "mmengine": patch_mmengine,
    "fastai": patch_fastai,
    "ultralytics": patch_ultralytics,
    "nnunet": patch_nnunet,
}


def trained() -> dict:
    """The parameters of each optimizer that stepped, for scripts that store no weights."""
    return {
        f"{at}.{group}.{place}": parameter.detach()
        for at, optimizer in enumerate(OPTIMIZERS)
        for group, held in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(held["params"])
    }


def count() -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def see(optimizer, *_) -> None:
        if not any(each is optimizer for each in OPTIMIZERS):
            OPTIMIZERS.append(optimizer)
        overflow = getattr(
            optimizer, "found_inf", None
        )  # a fused optimizer is called even then, and skips itself
        if overflow is None or not overflow.item():
            STEPS.append(1)

    register_optimizer_step_post_hook(see)

    def leave() -> None:
        if STEPS:
            rank = os.environ.get("RANK", "0")
            folder = Path(os.environ["FRAMEWORKS_COUNT"])
            (folder / f"steps-{rank}.json").write_text(json.dumps(len(STEPS)))
            if rank == "0" and not (folder / "weights.pt").exists():
                torch.save(trained(), folder / "weights.pt")

    atexit.register(leave)


def declare_operators() -> None:
    """Let torchvision be imported beside a torch without CUDA, for which it has no build.

    Its compiled operators do not load there, but its import registers two of them and fails if they are missing.
    No training here calls them.
    """
    import torch

    found = find_spec("torchvision")
    try:
        if found is not None:
            torch.ops.load_library(Path(found.origin).with_name("_C.so"))
    except OSError:
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)


declare_operators()
if "FRAMEWORKS_COUNT" in os.environ:
    import random

    import numpy as np
    import torch

    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)  # for scripts that set none
    if torch.cuda.is_available():
        torch.use_deterministic_algorithms(True, warn_only=True)
    elif "FRAMEWORKS_SHIM" in os.environ:
        PATCHES[os.environ["FRAMEWORKS_SHIM"]]()
    count()
