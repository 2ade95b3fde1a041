"""Hooks a model's modules in the iterations that are sampled or watched. Other iterations cost nothing.

Training's forward and backward passes call the hooks. A hook changes no value, raises nothing, and waits for nothing.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from ampmon import wire
from ampmon.activations.gathering import ActivationSample, Gathering, Lost
from ampmon.config import Config, clean_name
from ampmon.probe.accelerator import capturing
from ampmon.probe.device import DeviceProbe
from ampmon.probe.hooks import WeakHook, forget_hooks, remove_hooks, traceable
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
            met = {id(each) for each in self.all() if isinstance(each, _FUSED)}
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


WATCHED = 128
"""Number of updates that are watched after one whose loss was not finite, to see where that begins."""
ENOUGH, REST = 8, 512
"""Once the origin was seen ENOUGH times, REST updates are not watched."""
FREE_NS = 500_000_000
"""Time that watching may take in total, beyond its share of the training time."""


class ActivationSampler:
    """Samples the activations of the iterations whose ordinal is a multiple of ``config.activations``.

    After an update whose loss was not finite, other iterations are watched: only their magnitudes are gathered, to see
    where that begins. This must be decided before the forward pass, so it is decided when the previous iteration ends.
    ``failed`` is called with errors. Nothing here raises, except what ``failed`` raises.
    """

    def __init__(
        self, models: Models, config: Config, failed: Callable[[str, Exception], None]
    ) -> None:
        self._config = config
        self._failed = failed
        # Its own generator, so the state of the training's generators does not change.
        self._random = np.random.default_rng()
        # Its own tables: in shared ones, activations would push out those of gradients, which are kept for reuse.
        self._probe = DeviceProbe(failed)
        self._every = config.activations if models is not None else None
        self._registry = ModuleRegistry(models)
        self._gathering: Gathering | None = None
        self._handles: list[Any] = []
        weakref.finalize(self, remove_hooks, self._handles)
        self._hooked: list[tuple[weakref.ref[torch.nn.Module], str]] = []
        """The parameters that had no hooks before: a module of each, and the name there."""
        self._spent_ns = self._watched_ns = 0
        self._began = time.perf_counter_ns()
        self._watched_until = self._rests_until = self._seen = 0

    @property
    def modules(self) -> tuple[wire.Module, ...]:
        """The modules that records refer to by their index here."""
        return tuple(self._registry.modules)

    def lost(self, ordinal: int, lost: Lost | None) -> None:
        """Note a written update. ``lost`` is set if its loss was not finite. May be called on another thread."""
        if lost is not None:
            self._watched_until = ordinal + 1 + WATCHED
            self._seen += lost[0] is not None
            if self._seen == ENOUGH:
                self._seen, self._rests_until = 0, ordinal + REST

    def follows(self, ordinal: int) -> bool:
        """Whether the iteration with this ordinal may be sampled or watched."""
        return self._every is not None or self._watches(ordinal)

    def _watches(self, ordinal: int) -> bool:
        if not self._rests_until <= ordinal < self._watched_until:
            return False
        trained = time.perf_counter_ns() - self._began
        return self._watched_ns < FREE_NS + self._config.budget * trained

    def begin(self, ordinal: int, here: bool) -> bool:
        """Hook the modules if the iteration is to be sampled (only with ``here``) or watched (on any rank).

        Return whether there are new modules.
        """
        self.drop()
        measures = self._every is not None and not ordinal % self._every and here
        if not measures and not self._watches(ordinal):
            return False
        before = len(self._registry.modules)
        with self._guarded():
            gathering = Gathering(self._config.sample, self._random, self._probe, measures=measures)
            for place, module in self._registry.meet(every_path=measures):
                hook = _TraceableHook(self.left, weakref.ref(gathering), place)
                self._handles.append(module.register_forward_hook(hook, with_kwargs=True))
            for module in self._registry.all() if measures else ():
                self._watch_sums(gathering, module)
            self._gathering = gathering
        return len(self._registry.modules) > before

    def _watch_sums(self, gathering: Gathering, module: torch.nn.Module) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and parameter.is_leaf and not is_lazy(parameter):
                if parameter._post_accumulate_grad_hooks is None:
                    # By name, because torch swaps no parameter that has a weak reference.
                    self._hooked.append((weakref.ref(module), name))
                hook = WeakHook(gathering.added)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def end(self) -> tuple[ActivationSample | None, float]:
        """Unhook the modules. Return the sample, if any, and the time spent here since the last end, in us."""
        gathering, gathered = self._gathering, None
        self.drop()
        if gathering is not None:
            with self._guarded():
                gathered = gathering.gathered()
        spent, self._spent_ns = self._spent_ns, 0
        if gathering is not None and not gathering.measures:
            self._watched_ns += spent
        return gathered, spent / 1000

    def drop(self) -> None:
        """Unhook the modules and discard what was gathered."""
        self._gathering = None
        remove_hooks(self._handles)
        while self._hooked:
            module, name = self._hooked.pop()
            # Not as an attribute, which computes the parameter if it is parametrized by now.
            held = module()
            own = {} if held is None else dict(held.named_parameters(recurse=False))
            if name in own:
                forget_hooks(own[name])

    def left(
        self, of: weakref.ref[Gathering], place: int, _: object, given: Any, *rest: Any
    ) -> None:
        """Called by a hook when a module returns its output.

        ``rest`` are named inputs and the output. If the hook is removed meanwhile, torch leaves out the former.
        """
        # Without gradients, this is an evaluation, or the first of two passes under checkpointing.
        gathering = self._current(of) if len(rest) == 2 else None
        if gathering is not None and torch.is_grad_enabled():
            with self._guarded():
                named, output = rest
                inputs = given, named
                for tensor in gathering.called(place, inputs, output) if not _recorded() else ():
                    tensor.register_hook(_TraceableHook(self.came_back, of, place))

    def came_back(self, of: weakref.ref[Gathering], place: int, gradient: torch.Tensor) -> None:
        """Called by a hook when a gradient has come back to a module's output."""
        if (gathering := self._current(of)) is not None:
            with self._guarded():
                if not _recorded():
                    gathering.gradient(place, gradient)

    def _current(self, of: weakref.ref[Gathering]) -> Gathering | None:
        """The gathering of a hook, if the iteration is still going on: a graph that outlives it keeps its hooks."""
        return self._gathering if self._gathering is not None and of() is self._gathering else None

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Time the block, keep it out of the autograd graph, and report its errors instead of raising them."""
        started = time.perf_counter_ns()
        try:
            with torch.no_grad():
                yield
        except Exception as error:
            self._failed("measuring activations", error)
        finally:
            self._spent_ns += time.perf_counter_ns() - started


class _TraceableHook(WeakHook):
    """A hook that breaks no graph of torch.compile."""

    __slots__ = ()

    @traceable
    def __call__(self, *passed: Any) -> None:
        if not torch.compiler.is_compiling():
            WeakHook.__call__(self, *passed)


def _recorded() -> bool:
    """Whether the current work is being recorded to run again, in a CUDA graph or a trace."""
    traced: bool = torch._C._is_tracing()
    return capturing() or traced
