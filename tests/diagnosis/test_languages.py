"""A fix is written as the script writes it: torch's scaler stays torch's, a framework has its own settings."""

from __future__ import annotations

import pytest

from ampmon_server.case import Policy
from ampmon_server.diagnosis.rules import bf16, collapse_forecast, forgotten_state, sawtooth
from ampmon_server.policy.languages import in_settings_of


TORCH = "torch.amp.grad_scaler.GradScaler"
TRAINER = f"{TORCH} (transformers.Trainer)"
ACCELERATE = f"{TORCH} (accelerate.Accelerator)"
LIGHTNING = f"{TORCH} (lightning.Trainer)"
FABRIC = f"{TORCH} (lightning.Fabric)"
SHARDED = "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler"
CLIP = "scaler.unscale_(optimizer)\ntorch.nn.utils.clip_grad_norm_(parameters, 1.0)\nscaler.step(optimizer)"


@pytest.mark.parametrize(
    ("scaler", "code", "fix"),
    [
        ("ampmon.scaler.GradScaler", sawtooth.FIX, sawtooth.FIX),
        (TORCH, sawtooth.FIX, "scaler = torch.amp.GradScaler(growth_interval=2000)"),
        (SHARDED, sawtooth.FIX, "scaler = ShardedGradScaler(growth_interval=2000)"),
        (TORCH, CLIP, CLIP),
        (
            TRAINER,
            sawtooth.FIX,
            "trainer.accelerator.scaler = torch.amp.GradScaler(growth_interval=2000)  # before trainer.train()",
        ),
        (
            ACCELERATE,
            sawtooth.FIX,
            'Accelerator(mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(growth_interval=2000)])',
        ),
        (
            LIGHTNING,
            sawtooth.FIX,
            'Trainer(plugins=MixedPrecision("16-mixed", "cuda", torch.amp.GradScaler(growth_interval=2000)))',
        ),
        (
            FABRIC,
            sawtooth.FIX,
            'Fabric(plugins=MixedPrecision("16-mixed", "cuda", torch.amp.GradScaler(growth_interval=2000)))',
        ),
        (TRAINER, bf16.FIX, "TrainingArguments(bf16=True)"),
        (LIGHTNING, bf16.FIX, 'Trainer(precision="bf16-mixed")'),
        (TRAINER, forgotten_state.FIX, "trainer.train(resume_from_checkpoint=True)"),
        (TRAINER, CLIP, "TrainingArguments(max_grad_norm=max_norm)"),
        (LIGHTNING, CLIP, "Trainer(gradient_clip_val=max_norm)"),
    ],
)
def test_a_fix_is_a_setting_of_whoever_made_the_scaler(scaler: str, code: str, fix: str) -> None:
    """What the stream's header says of the scaler's maker decides in whose settings a fix is written."""
    assert in_settings_of(Policy(scaler_type=scaler), code) == fix


@pytest.mark.parametrize("scaler", [TORCH, TRAINER, ACCELERATE, LIGHTNING, FABRIC])
def test_what_only_ampmon_measures_is_asked_of_the_scaler_that_there_is(scaler: str) -> None:
    """Activations are sampled by watching the framework's own scaler, not by another one in its place."""
    fix = in_settings_of(Policy(scaler_type=scaler), collapse_forecast.FIX)
    assert "GradScaler" not in fix
    assert "scaler, model=model, monitor=ampmon.Config(activations=1))" in fix


def test_a_scaler_on_a_cpu_keeps_its_device() -> None:
    """The setting names the device where it is not CUDA, which is what torch takes without."""
    cpu = Policy(scaler_type=TRAINER, device="cpu")
    assert 'torch.amp.GradScaler("cpu", growth_interval=2000)' in in_settings_of(cpu, sawtooth.FIX)
