"""Finds what cures fp16's harm to a model's gradients, by running each cure: another scale, then modules in fp32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import torch

from ampmon.checking.passes import Bench, Pass, Places
from ampmon.checking.result import Preflight
from ampmon.checking.verdict import compared, harmed, not_finite
from ampmon.errors import ConfigurationError


ROOM = 8.0
"""The factor left to larger gradients: those of other batches differ by less than 3 bits, as a rule."""
STEP = 256.0
"""A scale that overflows is divided by it, until one fits; how much larger it may be is then read off."""
ROUNDS = 8
"""So many modules that overflow one after the other in the forward pass are kept in fp32."""

Model = TypeVar("Model", bound=torch.nn.Module)
Batch = TypeVar("Batch")


def preflight(
    model: Model,
    batch: Batch,
    loss_fn: Callable[[Model, Batch], torch.Tensor],
    *,
    init_scale: float = 65536.0,
) -> Preflight:
    """Compare the fp16 gradients of a model with its fp32 gradients on one batch, before you train.

    - ``model``: with fp32 parameters, on the device and in the mode (`train()` or `eval()`) that you train in; before
      `torch.compile` and before DDP or FSDP wrap it.
    - ``batch``: anything; it is passed to ``loss_fn(model, batch)`` as it is, in every pass.
    - ``loss_fn``: returns the loss, a tensor with one element. It enters no autocast and calls no ``backward()``.
    - ``init_scale``: the loss scale to try first.

    Runs a forward and backward pass in fp32, fp16 and bf16. If fp16 overflows, or underflows and changes a gradient by
    more than 1 % and more than bf16 does, further passes find a loss scale or modules in fp32 that cure it. A fix is
    named only if a pass has proven it. ``print()`` the result, or use ``to_dict()``.

    Syncs, and takes the memory of three more copies of the parameters. Model, gradients, buffers, hooks and random
    states are bit for bit the same afterwards, also after an error. Operators under autocast differ between devices:
    check on the device that you train on.

    Raises ConfigurationError for arguments that cannot be checked, and whatever ``loss_fn`` raises.
    """
    if not callable(loss_fn):
        raise ConfigurationError("loss_fn: a function of the model and the batch is needed")
    if not (math.isfinite(init_scale) and init_scale > 0):
        raise ConfigurationError(f"init_scale={init_scale!r}: a finite number above 0")
    bench = Bench(model, batch, loss_fn)
    truth = bench.run(torch.float32)
    if not truth.finite:
        return not_finite(bench, truth, init_scale)
    first = bench.run(torch.float16, init_scale)
    bf16 = bench.run(torch.bfloat16)
    return compared(bench, first, bf16, _Search(bench, first, bf16).cured())


class _Search:
    """Looks for the first pass in fp16 without a problem, of those with the fewest changes first."""

    def __init__(self, bench: Bench, first: Pass, bf16: Pass) -> None:
        self._bench, self._first, self._bf16 = bench, first, bf16

    def cured(self) -> Pass | None:
        """That pass; None where none was found."""
        if self._is_clean(self._first):
            return self._first
        fitted = self._fitted(())
        if self._is_clean(fitted):
            return fitted
        for found in self._candidates(fitted):
            kept = tuple(dict.fromkeys((*fitted.kept, *found)))
            # A model may not take fp32 in that place.
            with suppress(RuntimeError):
                if found and self._may_keep(kept) and self._is_clean(tried := self._fitted(kept)):
                    return tried
        return None

    def _is_clean(self, tried: Pass) -> bool:
        return tried.finite and not harmed(tried, self._bf16)

    def _may_keep(self, kept: Places) -> bool:
        """The model in fp32 as a whole, or most of what is trained, is no cure."""
        modules, trained = self._bench.modules, self._first.errors
        inside = {each for place in kept for each in modules[place].modules()}
        return 2 * sum(modules[place] in inside for place in trained) <= len(trained)

    def _candidates(self, fitted: Pass) -> Iterator[Places]:
        """Modules at fault; then also what is beside them, for a gradient is made by the module after."""
        yield () if fitted.departed is None else (fitted.departed,)
        origin, began = self._first.began()
        made = (began,) if origin == "backward" and began is not None else ()
        order = fitted.order
        small = tuple(sorted(fitted.small)) or harmed(fitted, self._bf16)
        for found, step in ((made, -1), (small, 1)):
            yield found
            beside = (fitted.index(place) + step for place in found)
            yield (*found, *(order[at] for at in beside if 0 <= at < len(order)))

    def _fitted(self, kept: Places) -> Pass:
        """A pass at a scale that fits, with these modules in fp32 and those that overflow in the forward pass."""
        first, run = self._first, self._bench.run
        tried = run(torch.float16, first.scale, kept) if kept else first
        for _ in range(ROUNDS):
            origin, place = tried.began()
            scale, more = tried.scale, () if place is None else (place,)
            if origin == "forward" and self._may_keep((*kept, *more)) and place not in kept:
                kept = (*kept, *more)
            elif origin == "backward" and scale > 1:
                scale = max(scale / STEP, 1.0)
            else:
                break
            tried = run(torch.float16, scale, kept)
        limits = [fits for place in tried.largest if (fits := tried.fits(place)) is not None]
        suits = min(limits, default=0.0) / ROOM
        settled = tried.scale >= first.scale and self._is_clean(tried)
        if tried.finite and suits > tried.scale and not settled:
            tried = run(torch.float16, suits, kept)
        return tried
