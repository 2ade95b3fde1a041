"""One forward and backward pass in a precision, at a scale, with some modules kept in fp32, and what it came to."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any, Literal, TypeAlias

import torch

from ampmon.activations import Activations, Gathered, ModuleRegistry
from ampmon.checking.snapshot import gradients_aside, leaves, unchanged
from ampmon.config import Config
from ampmon.errors import ConfigurationError
from ampmon.formats import FP16
from ampmon.histogram import ON_GRID_SHARE, Statistics
from ampmon.probe.eager import widest
from ampmon.wire import ForwardOrigin


Began: TypeAlias = ForwardOrigin | Literal["backward"]


@dataclass(frozen=True, slots=True)
class Pass:
    """Modules are known by their places. ``errors`` are those of the gradients, relative to fp32's norm.

    ``order`` is that of the forward pass. ``largest`` are the largest magnitudes of scaled gradients, of a module's
    parameters and of what it put out; NaN where one is not finite. ``made`` are the modules that made those.
    """

    scale: float
    kept: tuple[int, ...]
    loss: float
    gathered: Gathered
    order: Sequence[int]
    largest: Mapping[int, float]
    made: frozenset[int]
    errors: Mapping[int, float] = field(default_factory=dict)
    error: float = math.nan

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and all(map(math.isfinite, self.largest.values()))

    def over(
        self, limit: float, other: Mapping[int, float] = MappingProxyType({})
    ) -> tuple[int, ...]:
        """The modules whose gradient is wrong by more than that and than in another pass, in forward order."""
        return tuple(
            place
            for place in sorted(self.errors, key=self._index)
            if not self.errors[place] <= max(limit, other.get(place, 0.0))
        )

    def began(self) -> tuple[Began | None, int | None]:
        """Where the first value arose that is not finite, and in which module, as far as that was seen."""
        if not math.isfinite(self.loss):
            return self.gathered.lost()
        return ("backward", max(self.made, key=self._index)) if self.made else (None, None)

    def fits(self, place: int) -> float | None:
        """The largest power of two as a scale at which no gradient of a module overflows."""
        largest = self.largest.get(place, 0.0)
        if not (math.isfinite(self.loss) and math.isfinite(largest) and largest > 0):
            return None
        return 2.0 ** math.floor(math.log2(FP16.max / largest) + math.log2(self.scale))

    def beside(self, places: Sequence[int], step: int) -> tuple[int, ...]:
        """These, and the modules that are called before (-1) or after (1) them."""
        at = [self._index(place) + step for place in places]
        return (*places, *(self.order[i] for i in at if 0 <= i < len(self.order)))

    def _index(self, place: int) -> int:
        return self.order.index(place) if place in self.order else -1


class Bench:
    """Runs passes of a model on one batch; each begins with the same weights, buffers and random states.

    Raises ConfigurationError for a model that cannot be checked.
    """

    def __init__(self, model: Any, batch: Any, loss_fn: Callable[[Any, Any], torch.Tensor]) -> None:
        self._model, self._batch, self._loss_fn = model, batch, loss_fn
        self.device = _checked(model)
        self._activations = Activations(model, Config(activations=1, sample="all"), _raise)
        self.modules = dict(ModuleRegistry(model).meet(every_path=True))
        owned = {
            each: (place, name)
            for place, module in reversed(self.modules.items())
            for name, each in module.named_parameters(recurse=False)
            if each.requires_grad
        }
        self._parameters = list(owned)
        self._owners = list(owned.values())
        self._truth: list[torch.Tensor] = []

    def name(self, place: int) -> tuple[str, str]:
        """A module's name and its class."""
        told = self._activations.modules[place]
        return told.name, told.kind

    def label(self, place: int) -> str:
        return "module {} ({})".format(*self.name(place))

    def is_model(self, place: int) -> bool:
        return self.modules[place] is self._model

    def truth(self) -> Pass:
        """The pass in fp32, with which all later ones are compared."""
        found, self._truth = self._run(None, 1.0, ())
        return found

    def run(self, dtype: torch.dtype, scale: float = 1.0, kept: tuple[int, ...] = ()) -> Pass:
        """A pass under autocast, its loss multiplied by a scale, with the modules ``kept`` in fp32."""
        return self._run(dtype, scale, kept)[0]

    def _run(
        self, dtype: torch.dtype | None, scale: float, kept: tuple[int, ...]
    ) -> tuple[Pass, list[torch.Tensor]]:
        with unchanged(self._model), torch.enable_grad():
            for place in kept:
                _keep(self.modules[place], self.device)
            self._activations.begin(0, here=True)
            torch.clear_autocast_cache()
            try:
                with (
                    _no_other_autocast(self.device, dtype),
                    torch.autocast(self.device, dtype=dtype, enabled=dtype is not None),
                ):
                    loss = _scalar(self._loss_fn(self._model, self._batch))
                with gradients_aside(leaves(loss)):
                    (loss.float().sum() * scale).backward()
                    gradients = [_dense(each) for each in self._parameters]
                gathered, _ = self._activations.end()
            finally:
                self._activations.drop()
        assert gathered is not None
        return self._told(scale, kept, loss.item(), gathered, gradients), gradients

    def _told(
        self,
        scale: float,
        kept: tuple[int, ...],
        loss: float,
        gathered: Gathered,
        gradients: list[torch.Tensor],
    ) -> Pass:
        record = gathered.result()
        came_back = Statistics.from_wire(record.gradients) if record else Statistics.nothing(())
        order: list[int] = came_back.parameters.tolist()
        finite = came_back.inf + came_back.nan == 0
        largest = dict(zip(order, came_back.amax.tolist(), strict=True))
        # A gradient comes back to a module from the one after it, which made it.
        made = {order[min(row + 1, len(order) - 1)] for row in (~finite).nonzero()[0]}
        for (place, _), gradient in zip(self._owners, gradients, strict=True):
            amax, held = _magnitude(gradient)
            if not math.isfinite(amax):
                largest[place] = math.nan
                made.add(place)
            elif held and place not in kept:
                largest[place] = max(largest.get(place, 0.0), amax)
        errors, error = self._errors(scale, gradients)
        return Pass(scale, kept, loss, gathered, order, largest, frozenset(made), errors, error)

    def _errors(
        self, scale: float, gradients: list[torch.Tensor]
    ) -> tuple[dict[int, float], float]:
        """By module and of all. Biases are left out: before a normalisation, theirs is 0 by nature, and noise."""
        wrong, norm = defaultdict[int, float](float), defaultdict[int, float](float)
        for (place, name), gradient, truth in zip(
            self._owners, gradients, self._truth, strict=False
        ):
            if not name.endswith("bias"):
                wrong[place] += _square(gradient / scale - truth)
                norm[place] += _square(truth)
        errors = {each: math.sqrt(wrong[each] / norm[each]) for each in norm if norm[each] > 0}
        total = sum(norm.values())
        return errors, math.sqrt(sum(wrong.values()) / total) if total > 0 else math.nan


def _checked(model: Any) -> str:
    """The type of the device that a model is on."""
    if not isinstance(model, torch.nn.Module):
        raise ConfigurationError(f"model: a torch.nn.Module is needed, not {type(model).__name__}")
    for name, module in model.named_modules():
        _refuse_wrapper(name or "model", module)
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not trained:
        raise ConfigurationError(
            "model: no parameter requires a gradient, so there is none to check"
        )
    for name, each in trained.items():
        if torch.nn.parameter.is_lazy(each):
            raise ConfigurationError(f"{name} is not initialized: run the model once first")
        if each.dtype != torch.float32:
            kind = str(each.dtype).removeprefix("torch.")
            raise ConfigurationError(
                f"{name} is {kind}: preflight checks autocast, which needs fp32 parameters; "
                "call model.float() first"
            )
    kinds = {each.device.type for each in trained.values()}
    kind = next(iter(kinds))
    if len(kinds) > 1 or kind == "meta" or not torch.amp.is_autocast_available(kind):
        raise ConfigurationError(
            f"model: parameters on {', '.join(sorted(kinds))}; they have to be on one kind of device with autocast"
        )
    return kind


def _refuse_wrapper(name: str, module: torch.nn.Module) -> None:
    wrappers = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
    if found := wrappers & {each.__name__ for each in type(module).__mro__}:
        raise ConfigurationError(
            f"{name} is wrapped in {found.pop()}: pass the model as it was before, on one rank"
        )
    compiled = getattr(module, "_compiled_call_impl", None) or hasattr(module, "_orig_mod")
    if compiled or isinstance(module, torch.jit.ScriptModule):
        raise ConfigurationError(
            f"{name} is compiled, so its modules cannot be seen: pass the model as it was before"
        )


def _scalar(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = (
            f"shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        )
        raise ConfigurationError(
            f"loss_fn: it has to return the loss as a tensor with one element, not {found}; "
            "return loss.mean(), say"
        )
    if not loss.requires_grad:
        raise ConfigurationError(
            "loss_fn: the loss depends on no parameter that requires a gradient; "
            "look for detach(), item() or torch.no_grad()"
        )
    return loss


@contextmanager
def _no_other_autocast(device: str, dtype: torch.dtype | None) -> Iterator[None]:
    """Raise where a module is called under an autocast that is not ours; without one, fp32 may be chosen."""

    def look(module: torch.nn.Module, _: Any) -> None:
        if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) != dtype:
            raise ConfigurationError(
                f"{type(module).__name__} is called under a torch.autocast of the model or of loss_fn: "
                "leave it out, preflight chooses the precision"
            )

    handle = torch.nn.modules.module.register_module_forward_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()


def _keep(module: torch.nn.Module, device: str) -> None:
    """Call a module in fp32, as `torch.autocast(enabled=False)` and `.float()` would, until its attributes are back."""
    forward = module.forward
    in_fp32 = torch.amp.custom_fwd(
        lambda _, *given, **named: forward(*given, **named),
        device_type=device,
        cast_inputs=torch.float32,
    )
    module.forward = lambda *given, **named: in_fp32(SimpleNamespace(), *given, **named)


def _dense(parameter: torch.Tensor) -> torch.Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient.to_dense() if gradient.is_sparse else gradient


def _magnitude(gradient: torch.Tensor) -> tuple[float, bool]:
    """The largest magnitude, and whether fp16 made the gradient: then its values are numbers of fp16."""
    if not gradient.numel():
        return 0.0, False
    on_grid = (gradient == gradient.half()).float().mean().item()
    return gradient.abs().max().item(), on_grid >= ON_GRID_SHARE


def _square(tensor: torch.Tensor) -> float:
    norm = torch.linalg.vector_norm(tensor.detach(), dtype=widest(tensor.device))
    return float(norm.item() ** 2)


def _raise(_: str, error: Exception) -> None:
    raise error
