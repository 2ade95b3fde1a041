"""Runs forward and backward passes of one model on one batch: in a precision, at a scale, with modules in fp32."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

import torch

from ampmon.activations.gathering import ActivationSample
from ampmon.activations.hooks import ActivationSampler, ModuleRegistry
from ampmon.checking.snapshot import SameDraws, gradients_aside, unchanged
from ampmon.config import Config
from ampmon.errors import ConfigurationError
from ampmon.lints.losses import leaves_of, nodes_of
from ampmon.numerics.formats import FP16
from ampmon.numerics.histogram import ON_GRID_SHARE, Statistics
from ampmon.probe.eager import widest
from ampmon.wire import ForwardOrigin


Began: TypeAlias = ForwardOrigin | Literal["backward"]
Places: TypeAlias = tuple[int, ...]
"""Modules, by their places in the model."""
Tensors: TypeAlias = Sequence[torch.Tensor]

SUBNORMAL = 0.05
"""A larger share of subnormal gradient elements is a sign that fp16 loses some."""
DEPARTED = 0.1
"""If fp16 changes a module's largest output by this share, though its inputs are right, its gradient is lost too."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The result of a pass at ``scale``, with the modules ``kept`` in fp32.

    - ``order``: the modules in the order of the forward pass.
    - ``largest``: the largest magnitude of each module's scaled fp16 gradients, NaN if one is not finite.
    - ``made``: the modules that made the gradients that are not finite.
    - ``small``: modules with many subnormal gradient elements.
    - ``departed``: the first module whose output fp16 changes much.
    - ``errors``, ``error``: gradient errors by module and of all, relative to the gradient's norm in the first pass.
    """

    scale: float
    kept: Places
    loss: float
    gathered: ActivationSample
    order: list[int]
    largest: dict[int, float]
    made: set[int]
    small: set[int]
    departed: int | None
    errors: dict[int, float]
    error: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and not self.made

    def began(self) -> tuple[Began | None, int | None]:
        """Where the first value that is not finite arose, and in which module, as far as that was seen."""
        if not math.isfinite(self.loss):
            return self.gathered.lost()
        return ("backward", max(self.made, key=self.index)) if self.made else (None, None)

    def fits(self, place: int) -> float | None:
        """The largest scale, a power of two, at which no gradient of the module overflows; None if unknown."""
        largest = self.largest.get(place, 0.0)
        if not (math.isfinite(self.loss) and 0 < largest < math.inf):
            return None
        return 2.0 ** math.floor(math.log2(FP16.max / largest * self.scale))

    def index(self, place: int) -> int:
        """The module's position in the forward pass, or -1 if it was not seen there."""
        return self.order.index(place) if place in self.order else -1


class PassRunner:
    """Runs passes that begin with the same weights, buffers and random states. The first is the reference for others.

    Raises ConfigurationError for what cannot be checked.
    """

    def __init__(self, model: Any, batch: Any, loss_fn: Callable[[Any, Any], torch.Tensor]) -> None:
        self.device = checked_model(model)
        self.modules = dict(ModuleRegistry(model).meet(every_path=True))
        self._model, self._batch, self._loss_fn = model, batch, loss_fn
        self._activations = ActivationSampler(model, Config(activations=1, sample="all"), _raise)
        self._owners = {
            each: (place, name)
            # Reversed, so that the first module with a shared parameter owns it.
            for place, module in reversed(self.modules.items())
            for name, each in module.named_parameters(recurse=False)
            if each.requires_grad
        }
        self._truth: tuple[Tensors, ActivationSample] | None = None

    def name(self, place: int) -> tuple[str, str]:
        """The module's name and class."""
        module = self._activations.modules[place]
        return module.name, module.kind

    def run(self, dtype: torch.dtype, scale: float = 1.0, kept: Places = ()) -> Pass:
        """Run a pass in fp32, or under autocast to another ``dtype``, with the loss multiplied by ``scale``."""
        is_fp32 = dtype == torch.float32
        with unchanged(self._model), torch.enable_grad(), SameDraws():
            for place in kept:
                _keep(self.modules[place], self.device)
            self._activations.begin(0, here=True)
            # Within an autocast of the caller, the casts of the pass before would still be there.
            torch.clear_autocast_cache()
            autocast = torch.autocast(
                self.device, dtype=None if is_fp32 else dtype, enabled=not is_fp32
            )
            try:
                with _no_other_autocast(self.device, dtype), autocast:
                    loss = checked_loss(self._loss_fn(self._model, self._batch))
                with gradients_aside(leaves_of(nodes_of(loss))):
                    (loss.float().sum() * scale).backward()
                    gradients = [_dense(each) for each in self._owners]
                gathered, _ = self._activations.end()
            finally:
                self._activations.drop()
        assert gathered is not None
        self._truth = self._truth or (gradients, gathered)
        return self._compared(scale, kept, loss.item(), gathered, gradients)

    def _compared(
        self,
        scale: float,
        kept: Places,
        loss: float,
        gathered: ActivationSample,
        gradients: Tensors,
    ) -> Pass:
        record = gathered.result()
        came_back = Statistics.from_wire(record.gradients) if record else Statistics.nothing(())
        order: list[int] = came_back.parameters.tolist()
        largest = dict(zip(order, came_back.amax.tolist(), strict=True))
        # The gradient that comes back to a module is made by the following module.
        broken: list[int] = (came_back.inf + came_back.nan).nonzero()[0].tolist()
        made = {order[min(row + 1, len(order) - 1)] for row in broken}
        few = SUBNORMAL * came_back.looked
        small = {order[row] for row in (came_back.classes().subnormal > few).nonzero()[0].tolist()}
        for (place, _), gradient in zip(self._owners.values(), gradients, strict=True):
            amax, subnormal, of_fp16 = _magnitudes(gradient)
            if not math.isfinite(amax):
                largest[place] = math.nan
                made.add(place)
            elif of_fp16 and place not in kept:
                largest[place] = max(largest.get(place, 0.0), amax)
                small |= {place} if subnormal > SUBNORMAL else set()
        assert self._truth is not None
        truth, forward = self._truth
        departed = gathered.departed(forward, DEPARTED)
        errors = self._errors(scale, gradients, truth)
        return Pass(scale, kept, loss, gathered, order, largest, made, small, departed, *errors)

    def _errors(
        self, scale: float, gradients: Tensors, truths: Tensors
    ) -> tuple[dict[int, float], float]:
        """Errors by module and of all.

        Biases are left out: before a normalisation, their gradient is 0 by nature, so what remains is noise.
        """
        wrong, norm = defaultdict[int, float](float), defaultdict[int, float](float)
        owners = self._owners.values()
        for (place, name), gradient, truth in zip(owners, gradients, truths, strict=True):
            if not name.endswith("bias"):
                wrong[place] += _square(gradient / scale - truth)
                norm[place] += _square(truth)
        errors = {each: math.sqrt(wrong[each] / norm[each]) for each in norm if norm[each] > 0}
        total = sum(norm.values())
        return errors, math.sqrt(sum(wrong.values()) / total) if total > 0 else 0.0


@contextmanager
def _no_other_autocast(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Raise if a module is called under another autocast than ours, which would also apply in the fp32 pass."""

    def look(module: torch.nn.Module, _: Any) -> None:
        if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) != dtype:
            raise ConfigurationError(
                f"{type(module).__name__} runs under a torch.autocast of the model or of loss_fn: remove the "
                "autocast, because preflight sets the precision"
            )

    handle = torch.nn.modules.module.register_module_forward_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()


def _keep(module: torch.nn.Module, device: str) -> None:
    """Call a module in fp32, like `torch.autocast(enabled=False)` and `.float()`, until its attributes are restored."""
    forward = module.forward
    # It wraps an autograd function's forward, which is called with a context first.
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


def _magnitudes(gradient: torch.Tensor) -> tuple[float, float, bool]:
    """The largest magnitude, the share of subnormal elements, and whether fp16 made the gradient (on the grid)."""
    if not gradient.numel():
        return 0.0, 0.0, False
    magnitudes = gradient.abs()
    subnormal = (magnitudes > 0) & (magnitudes < FP16.min_normal)
    shares = (each.float().mean().item() for each in (subnormal, gradient == gradient.half()))
    small, on_grid = shares
    return magnitudes.max().item(), small, on_grid >= ON_GRID_SHARE


def _square(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=widest(tensor.device)).item() ** 2)


def _raise(_: str, error: Exception) -> None:
    raise error


_WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}


def checked_model(model: Any) -> str:
    """Return the type of the device that a model is on. Raises ConfigurationError if the model cannot be checked."""
    if not isinstance(model, torch.nn.Module):
        raise ConfigurationError(f"model: a torch.nn.Module is needed, not {type(model).__name__}")
    for fault in _faults(model):
        raise ConfigurationError(f"model: {fault}")
    return next(each.device.type for each in model.parameters() if each.requires_grad)


def _faults(model: torch.nn.Module) -> Iterator[str]:
    for name, module in model.named_modules():
        if found := _WRAPPERS & {each.__name__ for each in type(module).__mro__}:
            yield f"{name or 'it'} is wrapped in {found.pop()}; pass the unwrapped model, on one rank"
        compiled = getattr(module, "_compiled_call_impl", None) or hasattr(module, "_orig_mod")
        if compiled or isinstance(module, torch.jit.ScriptModule):
            yield f"{name or 'it'} is compiled, which hides its modules; pass the uncompiled model"
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    for name, each in trained.items():
        if torch.nn.parameter.is_lazy(each):
            yield f"{name} is not initialized; run the model once first"
        elif each.dtype != torch.float32:
            yield f"{name} is {each.dtype}, and autocast needs fp32 weights; call model.float() first"
    yield from _faults_of_device({each.device.type for each in trained.values()})


def _faults_of_device(kinds: set[str]) -> Iterator[str]:
    if not kinds:
        yield "no parameter requires a gradient, so there is none to check"
    elif len(kinds) > 1 or "meta" in kinds or not torch.amp.is_autocast_available(min(kinds)):
        yield (
            f"its weights are on {', '.join(sorted(kinds))}; put them all on one kind of device that supports autocast"
        )


def checked_loss(loss: Any) -> torch.Tensor:
    """Return the loss. Raises ConfigurationError if no backward pass can begin from it."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = (
            f"shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        )
        raise ConfigurationError(
            f"loss_fn: it must return a tensor with one element, not {found}; for example, return loss.mean()"
        )
    if not loss.requires_grad:
        raise ConfigurationError(
            "loss_fn: the loss depends on no parameter that requires a gradient; "
            "look for detach(), item() or torch.no_grad()"
        )
    return loss
