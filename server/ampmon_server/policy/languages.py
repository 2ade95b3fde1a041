"""Code to write instead, in the words of whoever made the scaler: torch, or a framework and its settings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ampmon_server.case import Policy


NO_DEVICE = "none"
"""What `ampmon.stream` tells for the device of a scaler: there is none of torch's."""
_TORCHS = re.compile(r"\bscaler\b|GradScaler|load_state_dict")
_ARGUMENT = re.compile(r"\b(init_scale|growth_interval)=(2\.0\*\*)?(-?[\d.]+)")
_MADE_BY = re.compile(r" \(([\w.]+)\)$")
_SCALER = re.compile(
    r"scaler = ampmon\.(?:GradScaler|watch)\((?P<arguments>.*)\)(?P<comment>  #.*)?$"
)
_BFLOAT16 = 'with torch.autocast("cuda", dtype=torch.bfloat16):'
_OWN_LOOP = re.compile(r"scaler\.(update|step|unscale_)\(|^# in a run that goes on|^state = scaler")


@dataclass(frozen=True, slots=True)
class _Framework:
    """Its own code for what a loop does with a scaler; ``{arguments}`` are those of torch's GradScaler."""

    scaler: str
    watched: str
    bfloat16: str
    clip: str = ""
    state: str = ""


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
        "trainer.train(resume_from_checkpoint=True)",
    ),
    "accelerate.Accelerator": _Framework(
        'Accelerator(mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs({arguments})])',
        "ampmon.watch(accelerator.scaler, {arguments})",
        'Accelerator(mixed_precision="bf16")',
        "if accelerator.sync_gradients:\n    accelerator.clip_grad_norm_(model.parameters(), max_norm)",
        "accelerator.save_state(directory)  # when you save\n"
        "accelerator.load_state(directory)  # when you resume, after accelerator.prepare()",
    ),
    "lightning.Trainer": _lightning(
        "Trainer",
        watched="ampmon.watch(trainer.precision_plugin.scaler, {arguments})  # before trainer.fit()",
        clip="Trainer(gradient_clip_val=max_norm)",
        state='trainer.fit(model, ckpt_path="last")',
    ),
    "lightning.Fabric": _lightning(
        "Fabric",
        watched="ampmon.watch(fabric.strategy.precision.scaler, {arguments})",
        clip="fabric.clip_gradients(model, optimizer, max_norm=max_norm)",
    ),
}


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
    """Code for `ampmon.GradScaler`, as the script writes it that has another, or a framework that makes its own."""
    if policy.device == NO_DEVICE:
        return _without_torch(policy, code)
    if policy.scaler_type.startswith("ampmon."):
        return code
    made_by = _MADE_BY.search(policy.scaler_type)
    framework = _FRAMEWORKS.get(made_by[1]) if made_by else None
    if framework is None:
        return "\n".join(_of_torch(policy, line) for line in code.splitlines())
    return "\n".join(dict.fromkeys(_of_framework(framework, policy, code)))


def _without_torch(policy: Policy, code: str) -> str:
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


def _of_torch(policy: Policy, line: str) -> str:
    """A script with torch's own scaler keeps it, and has it watched where only ampmon's can do a thing."""
    found = _SCALER.search(line)
    if found is None:
        return line
    arguments, comment = found["arguments"], found["comment"] or ""
    if "model=" in arguments:
        own = arguments if arguments.startswith("Sharded") else f"scaler, {arguments}"
        return f"scaler = ampmon.watch({own}){comment}"
    kind = "ShardedGradScaler" if "Sharded" in policy.scaler_type else "torch.amp.GradScaler"
    return f"scaler = {kind}({_arguments(policy, arguments)}){comment}"


def _arguments(policy: Policy, arguments: str) -> str:
    """Those of torch's scaler, whose device is CUDA unless another is named."""
    device = "" if policy.device.startswith(("cuda", "unknown")) else f'"{policy.device}"'
    return ", ".join(filter(None, (device, arguments)))


def _of_framework(framework: _Framework, policy: Policy, code: str) -> Iterator[str]:
    """Line by line; a framework scales, steps and updates by itself, so that what does is left out."""
    inside = False
    for line in code.splitlines():
        found = _SCALER.search(line)
        inside = inside and line.startswith(" ")
        if found is not None:
            yield from _scaler(framework, policy, found["arguments"], found["comment"] or "")
        elif line.startswith(_BFLOAT16):
            inside = True
            yield framework.bfloat16
        elif "clip_grad" in line:
            yield framework.clip or line
        elif "state_dict" in line and "scaler" in line and not line.startswith("state ="):
            yield from filter(None, () if "{**state" in line else (framework.state,))
        elif not inside and not _OWN_LOOP.search(line):
            yield line


def _scaler(framework: _Framework, policy: Policy, arguments: str, comment: str) -> Iterator[str]:
    if "Sharded" in arguments:
        return
    if arguments == "enabled=False":
        yield framework.bfloat16
    elif "model=" in arguments:
        yield framework.watched.format(arguments=arguments)
    elif arguments:
        given = arguments if framework.scaler.startswith("Accel") else _arguments(policy, arguments)
        device = policy.device if policy.device != "unknown" else "cuda"
        code = framework.scaler.format(arguments=given, device=device)
        yield code if "#" in code else f"{code}{comment}"
