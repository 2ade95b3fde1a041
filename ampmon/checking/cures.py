"""Finds a cure for fp16's harm to a model's gradients by running each: another scale, then modules in fp32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import torch

from ampmon.checking.passes import Pass, PassRunner, Places
from ampmon.checking.result import Preflight, compared, harmed, not_finite
from ampmon.errors import ConfigurationError


ROOM = 8.0
"""The factor left for larger gradients. Those of other batches usually differ by less than 3 bits."""
STEP = 256.0
"""A scale that overflows is divided by this until one fits. That pass shows how much larger the scale may be."""
ROUNDS = 8
"""The most attempts to fix an overflow, each by one more module in fp32 or by a lower scale."""

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

    - ``model``: with fp32 parameters, on the device and in the mode (`train()` or `eval()`) that you train in. Pass it
      before `torch.compile`, and before DDP or FSDP wrap it.
    - ``batch``: any object. Every pass hands it to ``loss_fn(model, batch)`` unchanged.
    - ``loss_fn``: returns the loss, a tensor with one element. It must not enter autocast or call ``backward()``.
    - ``init_scale``: the loss scale to try first.

    Runs a forward and backward pass in fp32, fp16 and bf16. If fp16 overflows, further passes look for a loss scale or
    for modules in fp32 that cure it. They also do so if fp16 underflows and changes a gradient by more than 1 % and
    more than bf16 does. A fix is named only if a pass has proven it. ``print()`` the result, or use ``to_dict()``.

    Syncs, and takes the memory of three more copies of the parameters. Model, gradients, buffers, hooks and random
    states are bit for bit the same afterwards, also after an error. Operators under autocast differ between devices, so
    check on the device that you train on.

    Raises ConfigurationError for arguments that cannot be checked, and whatever ``loss_fn`` raises.
    """
    if not callable(loss_fn):
        raise ConfigurationError("loss_fn: a function of the model and the batch is needed")
    if not (math.isfinite(init_scale) and init_scale > 0):
        raise ConfigurationError(f"init_scale={init_scale!r}: a finite number above 0")
    bench = PassRunner(model, batch, loss_fn)
    truth = bench.run(torch.float32)
    if not truth.finite:
        return not_finite(bench, truth, init_scale)
    first = bench.run(torch.float16, init_scale)
    bf16 = bench.run(torch.bfloat16)
    return compared(bench, first, bf16, _Search(bench, first, bf16).cured())


class _Search:
    """Looks for an fp16 pass without a problem, trying those with the fewest changes first."""

    def __init__(self, bench: PassRunner, first: Pass, bf16: Pass) -> None:
        self._bench, self._first, self._bf16 = bench, first, bf16

    def cured(self) -> Pass | None:
        if self._is_clean(self._first):
            return self._first
        fitted = self._fitted(())
        if self._is_clean(fitted):
            return fitted
        for found in self._candidates(fitted):
            kept = tuple(dict.fromkeys((*fitted.kept, *found)))
            # A model may not accept fp32 there.
            with suppress(RuntimeError):
                if found and self._may_keep(kept) and self._is_clean(tried := self._fitted(kept)):
                    return tried
        return None

    def _is_clean(self, tried: Pass) -> bool:
        return tried.finite and not harmed(tried, self._bf16)

    def _may_keep(self, kept: Places) -> bool:
        """Whether these modules may stay in fp32: the whole model, or most trained modules, would be no cure."""
        modules, trained = self._bench.modules, self._first.errors
        inside = {each for place in kept for each in modules[place].modules()}
        return 2 * sum(modules[place] in inside for place in trained) <= len(trained)

    def _candidates(self, fitted: Pass) -> Iterator[Places]:
        """Modules at fault, then also their neighbours, because the following module makes a module's gradient."""
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
        """Run passes up to a scale that fits, with ``kept`` and modules that overflow in the forward pass in fp32."""
        first, run = self._first, self._bench.run
        tried = run(torch.float16, first.scale, kept) if kept else first
        for _ in range(ROUNDS):
            origin, place = tried.began()
            scale, more = tried.scale, () if place is None else (place,)
            if origin == "forward" and self._may_keep((*kept, *more)) and place not in kept:
                kept = (*kept, *more)
            # Below 1, a scale would lose what fp16 holds without one.
            elif origin == "backward" and scale > 1:
                scale = max(scale / STEP, 1.0)
            else:
                break
            tried = run(torch.float16, scale, kept)
        limits = [fits for place in tried.largest if (fits := tried.fits(place)) is not None]
        suits = min(limits, default=0.0) / ROOM
        # A scale as large as asked stays if it harms nothing, although a larger one may fit.
        settled = tried.scale >= first.scale and self._is_clean(tried)
        if tried.finite and suits > tried.scale and not settled:
            tried = run(torch.float16, suits, kept)
        return tried
