"""Names of parameters from the modules that were built in this process, where nobody gave a model."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from typing import Any

from ampmon import signals


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


class BuiltNames:
    """What the models call their parameters that `ampmon run` saw being built; nothing without it.

    A model is a module that no other one contains. Where several are trained, the class of each stands before its
    names. A parameter that two models name differently has no name.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], str, str] | None] = {}
        """By a parameter's id: the module that holds it, under which key, and its whole name; None for two names."""
        startup = sys.modules.get("ampmon_startup")
        if startup is None:
            return
        try:
            self._name(_models(startup.built))
        except Exception as error:  # a module may be anything, and a name is not worth a training
            signals.let_through(error)
            self._known.clear()

    def _name(self, models: list[Any]) -> None:
        trained = [model for model in models if model.training] or models
        counts: Counter[str] = Counter()
        for model in models:
            kind = _kind(model)
            counts[kind] += 1
            label = kind if counts[kind] == 1 else f"{kind}-{counts[kind]}"
            self._learn(model, "" if trained == [model] else f"{label}.")

    def get(self, parameter: Any) -> str | None:
        """The one name of a parameter that its module still holds."""
        found = self._known.get(id(parameter))
        if found is None:
            return None
        module, key, name = found
        held = module()
        return name if held is not None and held._parameters.get(key) is parameter else None

    def held(self) -> set[int]:
        """The ids of the parameters that these models still hold."""
        modules = {found[0] for found in self._known.values() if found is not None}
        living = (module() for module in modules)
        return {id(each) for module in living if module for each in module._parameters.values()}

    def _learn(self, model: Any, prefix: str) -> None:
        own: dict[int, tuple[weakref.ref[Any], str, str]] = {}
        for path, module in model.named_modules():
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    name = prefix + strip_wrappers(f"{path}.{key}" if path else key)
                    own.setdefault(id(parameter), (weakref.ref(module), key, name))
        for identity, found in own.items():
            self._known[identity] = None if identity in self._known else found


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
