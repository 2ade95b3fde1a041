"""Sees what this process builds: its scalers, and its modules, which name parameters if no model was given."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

from ampmon.system import signals


STARTUP = Path(__file__).parents[1] / "startup"
"""The folder that `ampmon run` puts on PYTHONPATH."""
WRAPPERS = (
    "module.",
    "_orig_mod.",
    "_fsdp_wrapped_module.",
    "_checkpoint_wrapped_module.",
    "_forward_module.",  # Lightning Fabric's
)
"""Parts that DataParallel, DDP, torch.compile, FSDP and activation checkpointing add to parameter names."""


def strip_wrappers(name: str) -> str:
    """Return a parameter's name as the model's author wrote it."""
    name = ".".join(part for part in name.split(".") if f"{part}." not in WRAPPERS[1:])
    # Only at the beginning, because a model may have a part of its own called `module`.
    while name.startswith(WRAPPERS[0]):
        name = name.removeprefix(WRAPPERS[0])
    return name


def startup() -> ModuleType:
    """Return the module `ampmon_startup`, loaded once from `STARTUP`, which is not on the import path."""
    name = "ampmon_startup"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, STARTUP / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def auto() -> None:
    """Watch every GradScaler that this process creates from now on, in any library.

    Use it where `ampmon run` cannot be used: in notebooks, in Ray workers, and with a Python started with ``-I`` or
    ``-S``. A second call does nothing. Imports no torch. Never raises, writes or syncs.
    """
    if "torch" in sys.modules:
        see_modules()
    startup().install()


def see_modules() -> None:
    """Make `names` cover every module that exists now or is built later. Not needed under `ampmon run`.

    Searches all objects of the process once. Never raises or syncs.
    """
    try:
        seen = startup()
        if seen.sees_modules:
            return
        import torch

        seen.see_modules(torch.nn.modules.module)
        for each in living_modules():
            seen.see_module(each)
    except Exception as error:  # objects may do anything; a name must not stop training
        signals.let_through(error)


def living_modules() -> list[Any]:
    """Return each nn.Module of the process, found by a search of all objects.

    Runs on the calling thread. Another one would hold the interpreter's lock as long, and might be the last to hold an
    object, which would then be destroyed there.
    """
    import torch

    kinds = _subclasses(torch.nn.Module)
    # isinstance would call into proxy objects.
    return [each for each in gc.get_objects() if type(each) in kinds]


def names() -> dict[int, str]:
    """Return the names that the models of this process give their parameters, by id.

    A model is a module that no other one contains. If several are trained, names begin with the model's class. A
    parameter at different places of two models has no name. Covers modules that `see_modules` or `ampmon run` has seen.
    Never raises.
    """
    found: dict[int, tuple[str, str]] = {}
    try:
        # A shallow copy has the same parameters. Its names count less than those of the model in training.
        for prefix, model in sorted(models(), key=lambda each: not each[1].training):
            for identity, path in _own(model).items():
                if found.setdefault(identity, (path, prefix + path))[0] != path:
                    found[identity] = ("", "")
    except Exception as error:  # modules may do anything; a name must not stop training
        signals.let_through(error)
        return {}
    return {identity: name for identity, (_, name) in found.items() if name}


def models() -> list[tuple[str, Any]]:
    """Return the models of this process, each with the prefix of its names. See `names`."""
    seen = startup()
    # Not `values`, which fails while another thread builds modules.
    references = seen.built.valuerefs() if seen.sees_modules else ()
    found = _models([module for each in references if (module := each()) is not None])
    trained = [model for model in found if model.training] or found
    counts: Counter[str] = Counter()
    named = []
    for model in found:
        kind = _kind(model)
        counts[kind] += 1
        label = kind if counts[kind] == 1 else f"{kind}-{counts[kind]}"
        named.append(("" if trained == [model] else f"{label}.", model))
    return named


def _own(model: Any) -> dict[int, str]:
    own: dict[int, str] = {}
    for path, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                own.setdefault(id(parameter), strip_wrappers(f"{path}.{key}" if path else key))
    return own


def _subclasses(kind: type) -> set[type]:
    found, ahead = set(), [kind]
    while ahead:
        each = ahead.pop()
        if each not in found:
            found.add(each)
            ahead += each.__subclasses__()
    return found


def _models(living: list[Any]) -> list[Any]:
    """The modules that no other one contains and that have something to train."""
    inner = {id(child) for module in living for child in module._modules.values()}
    # Loops of StyleGAN freeze a model between its backward pass and its step.
    return [
        module
        for module in living
        if id(module) not in inner
        and any(each.requires_grad or each.grad is not None for each in module.parameters())
    ]


def _kind(model: Any) -> str:
    """The model's class, inside its wrappers."""
    children = list(model._modules.items())  # that of a scripted model is no dict
    if len(children) == 1 and f"{children[0][0]}." in WRAPPERS and children[0][1] is not None:
        return _kind(children[0][1])
    return type(model).__name__
