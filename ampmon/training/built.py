"""Names of parameters from the modules of this process, where nobody gave a model."""

from __future__ import annotations

import gc
import importlib.util
import sys
import weakref
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
"""What DataParallel and DDP, torch.compile, FSDP and activation checkpointing put into a parameter's name."""


def strip_wrappers(name: str) -> str:
    """A parameter's name as the model's author wrote it."""
    for wrapper in WRAPPERS[1:]:
        name = name.replace(wrapper, "")
    while name.startswith(WRAPPERS[0]):
        name = name.removeprefix(WRAPPERS[0])
    return name


def startup() -> ModuleType:
    """The one module of that name, which is not on the path of imports."""
    name = "ampmon_startup"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, STARTUP / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def see_modules() -> None:
    """Let `names` know each module that is alive now or built later; not needed under `ampmon run`.

    Looks once through all objects of the process. Never raises, syncs nothing.
    """
    try:
        seen = startup()
        if seen.sees_modules:
            return
        import torch

        seen.see_modules(torch.nn.modules.module)
        for each in living_modules():
            seen.see_module(each)
    except Exception as error:  # whatever else lives there: a name is not worth a training
        signals.let_through(error)


def living_modules() -> list[Any]:
    """Each nn.Module of the process, by a look at every object.

    In this thread: another would stop this one as long, by the interpreter's lock, and might be the last to hold an
    object, which is then destroyed there.
    """
    import torch

    kinds = _subclasses(torch.nn.Module)
    # isinstance would ask objects that stand for others.
    return [each for each in gc.get_objects() if type(each) in kinds]


def names() -> dict[int, str]:
    """What the models of this process call their parameters, by id.

    A model is a module that no other one contains. Where several are trained, the class of each stands before its
    names. A parameter that two models name differently has no name. Knows the modules since `see_modules` or
    `ampmon run`. Never raises.
    """
    found: dict[int, str | None] = {}
    try:
        for prefix, model in models():
            for identity, name in _own(model, prefix).items():
                found[identity] = None if identity in found else name
    except Exception as error:  # a module may be anything, and a name is not worth a training
        signals.let_through(error)
        return {}
    return {identity: name for identity, name in found.items() if name is not None}


def models() -> list[tuple[str, Any]]:
    """The models of this process, as `names` knows them, each with what stands before the names in it."""
    found = _models(startup().built)
    trained = [model for model in found if model.training] or found
    counts: Counter[str] = Counter()
    named = []
    for model in found:
        kind = _kind(model)
        counts[kind] += 1
        label = kind if counts[kind] == 1 else f"{kind}-{counts[kind]}"
        named.append(("" if trained == [model] else f"{label}.", model))
    return named


def _own(model: Any, prefix: str) -> dict[int, str]:
    own: dict[int, str] = {}
    for path, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                own.setdefault(
                    id(parameter), prefix + strip_wrappers(f"{path}.{key}" if path else key)
                )
    return own


def _subclasses(kind: type) -> set[type]:
    found, ahead = set(), [kind]
    while ahead:
        each = ahead.pop()
        if each not in found:
            found.add(each)
            ahead += each.__subclasses__()
    return found


def _models(built: dict[int, weakref.ref[Any]]) -> list[Any]:
    """The modules that nothing contains, of those with something to train."""
    living = [module for reference in list(built.values()) if (module := reference()) is not None]
    inner = {id(child) for module in living for child in module._modules.values()}
    return [
        module
        for module in living
        if id(module) not in inner and any(each.requires_grad for each in module.parameters())
    ]


def _kind(model: Any) -> str:
    """The class of the model in its wrappers."""
    for wrapper in WRAPPERS:
        inner = model._modules.get(wrapper[:-1])
        if inner is not None and len(model._modules) == 1:
            return _kind(inner)
    return type(model).__name__
