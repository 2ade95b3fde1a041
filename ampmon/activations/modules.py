"""Names and numbers the modules of a model, and decides which of them can be hooked. Holds them weakly."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import torch

from ampmon import wire
from ampmon.config import clean_name
from ampmon.training import built
from ampmon.training.built import strip_wrappers
from ampmon.training.parameters import Models, named_models


MODULES_MAX = 50_000
"""The most modules that a stream can name. Modules beyond are not measured."""


_FUSED = torch.nn.TransformerEncoderLayer


class ModuleRegistry:
    """The modules of one stream, in the order of the model's definition. Modules that join later come last.

    A name is the one in `named_modules()`, without what wrappers add. The model itself is named by its class. If no
    model is given, the modules are those of all models in the process.
    """

    def __init__(self, models: Models) -> None:
        self._roots = (
            None
            if models is None
            else [(prefix, weakref.ref(model)) for prefix, model in named_models(models)]
        )
        self._places: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()
        self._taken: set[str] = set()
        self.modules: list[wire.Module] = []

    def meet(self, *, every_path: bool) -> list[tuple[int, torch.nn.Module]]:
        """The modules to hook, each with its place in the header. Registers new modules. Walks the whole model.

        Without ``every_path``, leave out modules that take another path through their own code when hooked.
        """
        return [
            (place, module)
            for name, module, left_out in self._walk(every_path=every_path)
            if (place := self._place(name, module, left_out)) is not None and left_out is None
        ]

    def _place(
        self, name: str, module: torch.nn.Module, left_out: wire.LeftOut | None
    ) -> int | None:
        place = self._places.get(module)
        if place is None and len(self.modules) < MODULES_MAX:
            kind = clean_name(type(module).__name__)
            place = self._places[module] = len(self.modules)
            unique = self._unique(clean_name(name.strip(".") or kind)[:240])
            self.modules.append(wire.Module(unique, kind, left_out))
        return place

    def _unique(self, name: str) -> str:
        if name in self._taken:
            name = f"{name} #{len(self.modules)}"
        self._taken.add(name)
        return name

    def _walk(
        self, *, every_path: bool
    ) -> Iterator[tuple[str, torch.nn.Module, wire.LeftOut | None]]:
        met: set[int] = set()
        if not every_path:  # in an evaluation, a hook keeps a module off its fused path
            met = {
                id(each)
                for _, model in self._models()
                for each in model.modules()
                if isinstance(each, _FUSED)
            }
        for prefix, model in self._models():
            for name, module, left_out in _descend("", model, met):
                yield prefix + strip_wrappers(f"{name}."), module, left_out

    def all(self) -> set[torch.nn.Module]:
        """All modules of the models, those that cannot be hooked too. Walks the whole model."""
        return {module for _, model in self._models() for module in model.modules()}

    def _models(self) -> list[tuple[str, torch.nn.Module]]:
        if self._roots is None:
            return built.models()
        return [(prefix, model) for prefix, each in self._roots if (model := each()) is not None]


def _descend(
    name: str, module: torch.nn.Module, met: set[int]
) -> Iterator[tuple[str, torch.nn.Module, wire.LeftOut | None]]:
    """A module and all below it, each once, with the reason if it cannot be hooked.

    Does not descend into compiled modules: a hook inside would cause a recompilation, or never be called. The wrapper
    that `torch.compile` returns is plain Python, so its own output can be seen.
    """
    if id(module) in met:
        return
    met.add(id(module))
    left_out = _why_not(module)
    yield name, module, left_out
    if left_out is None and not hasattr(module, "_orig_mod"):
        for child_name, child in module.named_children():
            yield from _descend(f"{name}.{child_name}".lstrip("."), child, met)


def _why_not(module: torch.nn.Module) -> wire.LeftOut | None:
    if getattr(module, "_compiled_call_impl", None) is not None:
        return "compiled"
    return "scripted" if isinstance(module, torch.jit.ScriptModule) else None
