"""Rewrites the code of a fix for whatever makes the scaler: the script, or a framework with its settings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from ampmon.training.call import RULES, STOCK, Call, arguments, number, stock_arguments
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.words import in_code


NO_DEVICE = "none"
"""The device that `ampmon.stream` reports: it has no scaler of torch's."""
_TORCHS = re.compile(r"\bscaler\b|GradScaler|load_state_dict")
_SHARDED = "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler"
_MADE_BY = re.compile(r" \(([\w.]+)\)$")
_SCALER = re.compile(
    r"scaler = ampmon\.(?:GradScaler|watch)\((?P<sharded>ShardedGradScaler\(\), )?"
    r"(?P<arguments>.*)\)(?:  # (?P<note>.*))?$",
    re.MULTILINE,
)
_BFLOAT16 = 'with torch.autocast("cuda", dtype=torch.bfloat16):'
_OWN_LOOP = re.compile(r"scaler\.(update|step|unscale_)\(|^# in a running job|^state = scaler")


@dataclass(frozen=True, slots=True)
class _Framework:
    """A framework's code for what a loop does with a scaler. ``{arguments}`` are those of torch's GradScaler."""

    scaler: str
    watched: str
    bfloat16: str
    clip: str = ""
    own_clip: str = ""
    """Code that clips in a loop of the user's own."""
    backward: str = ""
    state: str = ""
    last: str = ""
    """Code that loads the scaler's state last."""
    schedule: str = ""
    """Code that does not step the scheduler after a skipped step."""


def _lightning(class_: str, **more: str) -> _Framework:
    return _Framework(
        f'{class_}(plugins=MixedPrecision("16-mixed", "{{device}}", torch.amp.GradScaler({{arguments}})))',
        bfloat16=f'{class_}(precision="bf16-mixed")',
        **more,
    )


_FRAMEWORKS: Mapping[str, _Framework] = {
    "transformers.Trainer": _Framework(
        "trainer.accelerator.scaler = torch.amp.GradScaler({arguments})  # before trainer.train()",
        "ampmon.watch(trainer.accelerator.scaler, {arguments})  # before trainer.train()",
        "TrainingArguments(bf16=True)",
        "TrainingArguments(max_grad_norm=max_norm)",
        state="# transformers 4.49 or newer: older ones do not store the scaler\n"
        "trainer.train(resume_from_checkpoint=True)",
    ),
    "accelerate.Accelerator": _Framework(
        'Accelerator(mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs({arguments})])',
        "ampmon.watch(accelerator.scaler, {arguments})",
        'Accelerator(mixed_precision="bf16")',
        "if accelerator.sync_gradients:\n    accelerator.clip_grad_norm_(model.parameters(), max_norm)",
        backward="accelerator.backward(loss)  # outside of accelerator.autocast()",
        state="accelerator.save_state(directory)  # when you save\n"
        "accelerator.load_state(directory)  # when you resume, after accelerator.prepare()",
        last="accelerator.load_state(directory)\n"
        'state = torch.load(f"{directory}/scaler.pt")\n'
        "accelerator.scaler.load_state_dict(state)  # last",
    ),
    "lightning.Trainer": _lightning(
        "Trainer",
        watched="ampmon.watch(trainer.precision_plugin.scaler, {arguments})  # before trainer.fit()",
        clip="Trainer(gradient_clip_val=max_norm)",
        own_clip="# in your LightningModule, instead of in training_step()\n"
        "def on_before_optimizer_step(self, optimizer):\n"
        "    self.clip_gradients(optimizer, gradient_clip_val=max_norm)",
        backward='with torch.autocast("cuda", enabled=False):\n    self.manual_backward(loss)',
        state='trainer.fit(model, ckpt_path="last")',
        schedule="""\
# in your LightningModule
def optimizer_step(self, *args, **kwargs):
    scaler = self.trainer.precision_plugin.scaler
    before = scaler.get_scale()
    super().optimizer_step(*args, **kwargs)
    self.skipped = scaler.get_scale() < before

def lr_scheduler_step(self, scheduler, metric):
    if not self.skipped:
        super().lr_scheduler_step(scheduler, metric)""",
    ),
    "lightning.Fabric": _lightning(
        "Fabric",
        watched="ampmon.watch(fabric.strategy.precision.scaler, {arguments})",
        clip="fabric.clip_gradients(model, optimizer, max_norm=max_norm)",
        backward="fabric.backward(loss)  # outside of fabric.autocast()",
    ),
}


def _deepspeed(settings: Mapping[str, float]) -> str:
    names = {"init_scale": "initial_scale_power", "growth_interval": "loss_scale_window"}
    written = {**settings}
    if "init_scale" in written:
        written["init_scale"] = max(round(math.log2(written["init_scale"])), 0)
    inner = ", ".join(f'"{names[name]}": {value:.0f}' for name, value in written.items())
    return f'"fp16": {{"enabled": true, {inner}}}  # in the DeepSpeed configuration'


def _megatron(settings: Mapping[str, float]) -> str:
    names = {"init_scale": "--initial-loss-scale", "growth_interval": "--loss-scale-window"}
    return " ".join(f"{names[name]} {value:.0f}" for name, value in settings.items())


_LANGUAGES: Mapping[str, Callable[[Mapping[str, float]], str]] = {
    "deepspeed": _deepspeed,
    "megatron": _megatron,
}


def in_settings_of(policy: ScalePolicy, code: str) -> str:
    """Rewrite a fix as the script would: with its own call that makes the scaler, or as a framework's settings.

    `ampmon.GradScaler(...)` in ``code`` has only the arguments that change.
    """
    if policy.device == NO_DEVICE:
        return _without_torch(policy, code)
    made_by = _MADE_BY.search(policy.scaler_type)
    framework = _FRAMEWORKS.get(made_by[1]) if made_by else None
    if framework is None:
        lines = [_SCALER.sub(partial(_own, policy), line) for line in code.splitlines()]
    elif "scheduler.step()" in code:
        lines = [framework.schedule or code]
    elif "# outside" in code:
        lines = [framework.backward or code]
    elif "# before clipping" in code or "# once, after the last backward" in code:
        lines = [framework.own_clip or framework.clip]
    elif "# last" in code:
        lines = [framework.last or framework.state or code]
    else:
        lines = list(dict.fromkeys(_of_framework(framework, policy, code)))
    return on_device_of(policy, "\n".join(lines))


def on_device_of(policy: ScalePolicy, code: str) -> str:
    """Put the autocast in ``code`` on the scaler's device: one for CUDA does nothing on another device."""
    device = policy.device.partition(":")[0]
    if device in (NO_DEVICE, "unknown"):
        return code
    return code.replace('torch.autocast("cuda"', f'torch.autocast("{device}"')


def _own(policy: ScalePolicy, found: re.Match[str]) -> str:
    """The script's own call. A scaler of torch's is wrapped in `ampmon.watch` if only ampmon's can do the change."""
    call = _call(policy)
    if found["sharded"]:
        call = replace(call, kind=_SHARDED, watched=True)
    return call.code(_changes(found), found["note"] or "", _running(policy))


def _call(policy: ScalePolicy) -> Call:
    """How the script makes its scaler. If an older client did not report that, its device and rules tell."""
    given = policy.arguments
    if given is None:
        given = {
            name: value
            for name, value in _running(policy).items()
            if number(value) not in (0, number(STOCK[name]))  # 0 is an interval that a log lacks
        }
        if not policy.device.startswith(("cuda", "unknown")):
            given["device"] = f'"{policy.device}"'
    return Call(_MADE_BY.sub("", policy.scaler_type), given, policy.watched)


def _running(policy: ScalePolicy) -> dict[str, str]:
    return {name: in_code(getattr(policy, name)) for name in RULES}


def _changes(found: re.Match[str]) -> dict[str, str]:
    return arguments(f"GradScaler({found['arguments']})")[1]


def settings_in(code: str) -> dict[str, float]:
    """Return the rules for the scale that `ampmon.GradScaler(...)` changes. Empty if the code does anything else."""
    if not all(_TORCHS.search(line) or line.startswith("#") for line in code.splitlines()):
        return {}
    return _settings_in(code)


def _settings_in(code: str) -> dict[str, float]:
    return {
        name: value
        for found in _SCALER.finditer(code)
        for name, written in _changes(found).items()
        if name in RULES and (value := number(written)) is not None
    }


def _without_torch(policy: ScalePolicy, code: str) -> str:
    found = _settings_in(code)
    settings = {name: found[name] for name in found if name in ("init_scale", "growth_interval")}
    kept = [line for line in code.splitlines() if not _TORCHS.search(line)]
    lines = kept if any(not line.startswith("#") for line in kept) else []
    language = _LANGUAGES.get(policy.scaler_type.partition(".")[0])
    if settings and language is not None:
        lines = [language(settings), *lines]
    return "\n".join(lines)


def _of_framework(framework: _Framework, policy: ScalePolicy, code: str) -> Iterator[str]:
    """Translate line by line. A framework scales, steps and updates by itself, so such lines are left out."""
    inside = False
    for line in code.splitlines():
        found = _SCALER.search(line)
        inside = inside and line.startswith(" ")
        if found is not None:
            if not found["sharded"]:
                yield from _scaler(framework, policy, _changes(found), found["note"] or "")
        elif line.startswith(_BFLOAT16):
            inside = True
            yield framework.bfloat16
        elif "clip_grad" in line:
            yield framework.clip or line
        elif "state_dict" in line and "scaler" in line and not line.startswith("state ="):
            yield from filter(None, () if "{**state" in line else (framework.state,))
        elif not inside and not _OWN_LOOP.search(line):
            yield line


def _scaler(
    framework: _Framework, policy: ScalePolicy, changes: dict[str, str], note: str
) -> Iterator[str]:
    if changes == {"enabled": "False"}:
        yield framework.bfloat16
    elif "model" in changes:
        yield framework.watched.format(
            arguments=", ".join(f"{name}={value}" for name, value in changes.items())
        )
    elif changes:
        given, marks = _call(policy).changed(changes, _running(policy))
        device = policy.device if policy.device != "unknown" else "cuda"
        if framework.scaler.startswith("Accel"):
            given.pop("device", None)  # it sets its own
        code = framework.scaler.format(arguments=stock_arguments(given), device=device)
        comment = "; ".join(filter(None, (*marks, note)))
        yield f"{code}{'; ' if '#' in code else '  # '}{comment}" if comment else code
