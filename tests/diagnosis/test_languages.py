"""Fixes are written in the script's own terms: torch's scaler, or the framework's settings."""

from __future__ import annotations

import pytest

from ampmon.lints.reporter import LINTS
from ampmon_server.analysis.diagnosis.rules import (
    forgotten_state,
    parts,
    ranks_disagree,
    scheduler_ahead,
)
from ampmon_server.analysis.diagnosis.rules.scale import collapse_forecast, sawtooth
from ampmon_server.analysis.policy.languages import in_settings_of
from ampmon_server.model.scale_policy import ScalePolicy


OWN = "ampmon.client.scaler.GradScaler"
TORCH = "torch.amp.grad_scaler.GradScaler"
TRAINER = f"{TORCH} (transformers.Trainer)"
ACCELERATE = f"{TORCH} (accelerate.Accelerator)"
LIGHTNING = f"{TORCH} (lightning.Trainer)"
FABRIC = f"{TORCH} (lightning.Fabric)"
SHARDED = "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler"
CLIP = "scaler.unscale_(optimizer)\ntorch.nn.utils.clip_grad_norm_(parameters, 1.0)\nscaler.step(optimizer)"

CLIPPED_BY_HOOK = (
    "# in your LightningModule, instead of in training_step()\n"
    "def on_before_optimizer_step(self, optimizer):\n"
    "    self.clip_gradients(optimizer, gradient_clip_val=max_norm)"
)
CLIPPED_BY_FABRIC = "fabric.clip_gradients(model, optimizer, max_norm=max_norm)"
OUTSIDE = "{0}.backward(loss)  # outside of {0}.autocast()"

RESUMED = (  # transformers#34053
    "# transformers 4.49 or newer: older ones do not store the scaler\n"
    "trainer.train(resume_from_checkpoint=True)"
)
LOADED_LAST = LINTS["moved_outside_training"].fix
WAS = "growth_interval was 50"


@pytest.mark.parametrize(
    ("scaler", "code", "fix"),
    [
        (OWN, sawtooth.FIX, f"scaler = ampmon.GradScaler(growth_interval=2000)  # {WAS}"),
        (TORCH, sawtooth.FIX, f"scaler = torch.amp.GradScaler(growth_interval=2000)  # {WAS}"),
        (SHARDED, sawtooth.FIX, f"scaler = ShardedGradScaler(growth_interval=2000)  # {WAS}"),
        (TORCH, CLIP, CLIP),
        (
            TRAINER,
            sawtooth.FIX,
            "trainer.accelerator.scaler = torch.amp.GradScaler(growth_interval=2000)  # before trainer.train(); "
            f"{WAS}",
        ),
        (
            ACCELERATE,
            sawtooth.FIX,
            'Accelerator(mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(growth_interval=2000)])'
            f"  # {WAS}",
        ),
        (
            LIGHTNING,
            sawtooth.FIX,
            'Trainer(plugins=MixedPrecision("16-mixed", "cuda", torch.amp.GradScaler(growth_interval=2000)))'
            f"  # {WAS}",
        ),
        (
            FABRIC,
            sawtooth.FIX,
            'Fabric(plugins=MixedPrecision("16-mixed", "cuda", torch.amp.GradScaler(growth_interval=2000)))'
            f"  # {WAS}",
        ),
        (TRAINER, parts.BF16, "TrainingArguments(bf16=True)"),
        (LIGHTNING, parts.BF16, 'Trainer(precision="bf16-mixed")'),
        (TRAINER, forgotten_state.FIX, RESUMED),
        (TRAINER, CLIP, "TrainingArguments(max_grad_norm=max_norm)"),
        (LIGHTNING, CLIP, "Trainer(gradient_clip_val=max_norm)"),
        (FABRIC, scheduler_ahead.FIX, scheduler_ahead.FIX),
        (FABRIC, LOADED_LAST, LOADED_LAST),
        (TRAINER, LOADED_LAST, RESUMED),
        (
            ACCELERATE,
            LOADED_LAST,
            'accelerator.load_state(directory)\nstate = torch.load(f"{directory}/scaler.pt")\n'
            "accelerator.scaler.load_state_dict(state)  # last",
        ),
    ],
)
def test_a_fix_is_a_setting_of_whoever_made_the_scaler(scaler: str, code: str, fix: str) -> None:
    """A fix is written in the settings of the framework that created the scaler."""
    assert in_settings_of(ScalePolicy(scaler_type=scaler, growth_interval=50), code) == fix


@pytest.mark.parametrize(
    ("scaler", "rule", "fix"),
    [
        (LIGHTNING, "clip_before_unscale", CLIPPED_BY_HOOK),
        (LIGHTNING, "unscale_in_accumulation", CLIPPED_BY_HOOK),
        (
            ACCELERATE,
            "unscale_in_accumulation",
            "if accelerator.sync_gradients:\n    accelerator.clip_grad_norm_(model.parameters(), max_norm)",
        ),
        (FABRIC, "clip_before_unscale", CLIPPED_BY_FABRIC),
        (
            LIGHTNING,
            "backward_under_autocast",
            'with torch.autocast("cuda", enabled=False):\n    self.manual_backward(loss)',
        ),
        (ACCELERATE, "backward_under_autocast", OUTSIDE.format("accelerator")),
        (FABRIC, "backward_under_autocast", OUTSIDE.format("fabric")),
    ],
)
def test_a_fix_of_a_loop_calls_the_framework(scaler: str, rule: str, fix: str) -> None:
    """The fix of a loop that calls a framework calls it too. Lightning rejects `gradient_clip_val` there."""
    assert in_settings_of(ScalePolicy(scaler_type=scaler), LINTS[rule].fix) == fix


def test_lightning_s_scheduler_waits_by_its_module_s_hooks() -> None:
    """Lightning steps the scheduler itself, so the fix overrides the module's hooks (Lightning#5558, #21339)."""
    fix = in_settings_of(ScalePolicy(scaler_type=LIGHTNING), scheduler_ahead.FIX)
    assert fix.startswith("# in your LightningModule\ndef optimizer_step(self, *args, **kwargs):\n")
    assert "scheduler.step()" not in fix
    compile(fix, "fix", "exec")


@pytest.mark.parametrize("scaler", [TRAINER, ACCELERATE, LIGHTNING, FABRIC])
def test_what_only_ampmon_measures_is_asked_of_the_scaler_that_there_is(scaler: str) -> None:
    """The fix that samples activations watches the framework's own scaler instead of replacing it."""
    fix = in_settings_of(ScalePolicy(scaler_type=scaler), collapse_forecast.FIX)
    assert "GradScaler" not in fix
    assert "scaler, model=model, monitor=ampmon.Config(activations=1))" in fix


def test_a_scaler_on_a_cpu_keeps_its_device() -> None:
    """The fix for a scaler on a CPU names the device."""
    cpu = ScalePolicy(scaler_type=TRAINER, device="cpu")
    assert 'torch.amp.GradScaler("cpu", growth_interval=2000)' in in_settings_of(cpu, sawtooth.FIX)


def test_autocast_in_a_fix_is_on_the_scaler_s_device() -> None:
    """The bf16 fix names the CPU in `torch.autocast` for a CPU scaler, and is unchanged for CUDA."""
    cpu = ScalePolicy(scaler_type=OWN, device="cpu")
    assert 'torch.autocast("cpu", dtype=torch.bfloat16)' in in_settings_of(cpu, parts.BF16)
    cuda = in_settings_of(ScalePolicy(scaler_type=OWN, device="cuda:1"), parts.BF16)
    assert cuda.splitlines()[:2] == parts.BF16.splitlines()[:2]


def test_an_older_client_says_its_device_and_rules() -> None:
    """Without the recorded call, a fix keeps the device and every setting that differs from torch's default."""
    policy = ScalePolicy(scaler_type=TORCH, device="cpu", init_scale=1024.0, growth_interval=50)
    assert in_settings_of(policy, sawtooth.FIX) == (
        f'scaler = torch.amp.GradScaler("cpu", init_scale=1024, growth_interval=2000)  # {WAS}'
    )


GIVEN = {"device": '"cpu"', "model": "net", "monitor": "ampmon.Config(every=10)"}


@pytest.mark.parametrize(
    ("policy", "code", "fix"),
    [
        (
            ScalePolicy(arguments={**GIVEN, "growth_interval": "50"}),
            sawtooth.FIX,
            'scaler = ampmon.GradScaler("cpu", growth_interval=2000, model=net, monitor=ampmon.Config(every=10))'
            f"  # {WAS}",
        ),
        (
            ScalePolicy(arguments=GIVEN),
            collapse_forecast.FIX.splitlines()[-1],
            'scaler = ampmon.GradScaler("cpu", model=net, monitor=ampmon.Config(every=10, activations=1))'
            "  # monitor was ampmon.Config(every=10)",
        ),
        (
            ScalePolicy(scaler_type=TORCH, watched=True, arguments={"model": "net"}),
            "scaler = ampmon.GradScaler(enabled=False)  # for bfloat16",
            "scaler = ampmon.watch(torch.amp.GradScaler(enabled=False), model=net)"
            "  # enabled was True; for bfloat16",
        ),
        (
            ScalePolicy(scaler_type=TORCH, arguments={"device": '"cpu"'}),
            collapse_forecast.FIX.splitlines()[-1],
            'scaler = ampmon.watch(torch.amp.GradScaler("cpu"), model=model, monitor=ampmon.Config(activations=1))'
            "  # model is new; monitor is new",
        ),
        (
            ScalePolicy(scaler_type=TORCH, arguments={"device": '"cpu"', "init_scale": "8"}),
            ranks_disagree.FIX.splitlines()[-1],
            'scaler = ampmon.watch(ShardedGradScaler("cpu", init_scale=8), model=model)'
            "  # model is new; asks all ranks before it skips; not with fused=True",
        ),
        (
            ScalePolicy(scaler_type="torch.cuda.amp.grad_scaler.GradScaler", arguments={}),
            "scaler = ampmon.GradScaler(init_scale=2.0**20)",
            "scaler = torch.cuda.amp.GradScaler(init_scale=2.0**20)  # init_scale was 65536",
        ),
        (
            ScalePolicy(growth_interval=50, arguments={}),
            sawtooth.FIX,
            "scaler = ampmon.GradScaler(growth_interval=2000)  # growth_interval is 50 in this run",
        ),
    ],
)
def test_a_fix_is_the_script_s_own_call(policy: ScalePolicy, code: str, fix: str) -> None:
    """A fix keeps the script's own arguments and names the changed ones in a comment."""
    assert in_settings_of(policy, code) == fix
