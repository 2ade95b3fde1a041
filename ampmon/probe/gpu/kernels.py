"""Runs Triton kernels over lists of gradients, one launch for each list.

Triton comes with torch for CUDA and is not needed otherwise. This process imports it only to use its interpreter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec

import torch

from ampmon.numerics.packed import WIDTH
from ampmon.probe.gpu import loading
from ampmon.probe.gpu.compiler import Kernel
from ampmon.probe.gpu.table import Table, Tables, Unsupported
from ampmon.probe.gradients import MEASURED, has_no_gaps
from ampmon.probe.ring import Readback
from ampmon.system import signals


UNSCALED = frozenset({torch.float32, torch.float16})
"""Dtypes that a kernel unscales exactly as torch does. fp16 only occurs if the scaler allows it (fused optimizers)."""


_COUNTS_BYTES = 1 << 17
"""At most this many bytes of counts of the same gradients are made at once."""


class KernelError(Exception):
    """A kernel failed to compile or launch. Nothing was written to the gradients.

    ``__cause__`` is the error of the compiler or the driver.
    """


@cache
def supported(device: torch.device) -> bool:
    """Return whether the kernels run there: on GPUs under Linux if Triton is installed, on a CPU if it interprets."""
    if find_spec("triton") is None:
        return False
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type == "cpu":
        return interpreted
    return device.type == "cuda" and sys.platform == "linux" and not interpreted


def expect(device_type: str) -> None:
    """Prepare for measuring gradients on devices of this type: start the compiler if kernels run there."""
    if device_type == "cuda" and supported(torch.device(device_type)):
        loading.expect()


def nothing() -> None:
    """Do nothing: the default ``ready`` callback."""


class Cache:
    """The kernels, with tables of gradient addresses that are kept between calls.

    Each method takes n plain strided tensors of one device and dtype. It enqueues a copy of addresses (if they
    changed), a fill and one launch on the current stream, and does not wait. Other processes compile the kernels in
    some seconds, or in one if Triton's own disk cache has them. Until then calls raise `NotReady`. A call raises
    `Unsupported` or `KernelError` before it writes to a gradient or to found_inf. Keeps no gradient alive. Not
    thread-safe.
    """

    def __init__(self) -> None:
        self._tables = Tables()

    @property
    def nbytes(self) -> int:
        """Bytes of device memory kept between calls: below 1 % of the gradients' if these average 4000 elements."""
        return self._tables.nbytes

    def statistics(
        self, gradients: Sequence[torch.Tensor], ready: Callable[[], None] = nothing
    ) -> torch.Tensor:
        """Return statistics of every element, packed as by `eager.launch`: int64 [n, WIDTH], on the device.

        Gradients are fp32, fp16, bf16 or fp64 in any layout. Those with gaps are copied. ``ready`` is called when all
        is prepared, before the launch. Counts and amax are exact. The sum of squares adds the elements' fp64 squares.
        The order of addition varies, and so do the last bits.
        """
        _prepare(gradients)
        whole = [each if has_no_gaps(each) else each.contiguous() for each in gradients]
        return self._measure(whole, MEASURED, None, None, ready)

    def unscale(
        self,
        gradients: Sequence[torch.Tensor],
        found_inf: torch.Tensor,
        inv_scale: torch.Tensor,
        ready: Callable[[], None] = nothing,
    ) -> torch.Tensor:
        """Multiply fp32 or fp16 gradients without gaps by ``inv_scale`` in place, and return statistics before that.

        Those are int64 [n, WIDTH]. Sets ``found_inf`` to 1 if any element is not finite, and otherwise leaves it. Both
        are fp32 with one element, read on the device. Gradients and found_inf end bit for bit as torch's own operator
        leaves them, except NaN payloads: a NaN stays NaN, with any bits.
        """
        _prepare(gradients)
        _refuse_gaps(gradients)
        return self._measure(gradients, UNSCALED, found_inf, inv_scale, ready)

    def counter(self, gradients: Sequence[torch.Tensor]) -> Counter:
        """Return a function of found_inf that counts inf and NaN. Call it while all gradients keep their addresses.

        No gradient may have gaps.
        """
        _prepare(gradients)
        _refuse_gaps(gradients)
        return Counter(self._table(gradients, MEASURED), gradients[0], len(gradients))

    def _measure(
        self,
        gradients: Sequence[torch.Tensor],
        dtypes: frozenset[torch.dtype],
        found_inf: torch.Tensor | None,
        inv_scale: torch.Tensor | None,
        ready: Callable[[], None],
    ) -> torch.Tensor:
        device = gradients[0].device
        into = torch.zeros((len(gradients), WIDTH), dtype=torch.int64, device=device)
        table = self._table(gradients, dtypes)
        unscale = inv_scale is not None
        if unscale and not table.distinct:
            raise Unsupported("gradients share memory, so an element would be unscaled twice")
        ready()
        _launch("measure", table, gradients[0], into, found_inf, inv_scale, UNSCALE=unscale)
        return into

    def _table(self, gradients: Sequence[torch.Tensor], dtypes: frozenset[torch.dtype]) -> Table:
        if gradients[0].dtype not in dtypes:
            raise Unsupported(f"gradients of {gradients[0].dtype}")
        return self._tables.of(gradients)


def _refuse_gaps(gradients: Sequence[torch.Tensor]) -> None:
    if not all(map(has_no_gaps, gradients)):
        raise Unsupported("the elements of a gradient do not fill their memory")


def _prepare(gradients: Sequence[torch.Tensor]) -> None:
    if (device := gradients[0].device).type == "cuda":
        loading.prepare(device, _rehearse)


class Counter:
    """Enqueues counts of the inf and NaN elements of n gradients, again and again on one stream.

    Each call returns other counts, int64 [n, 2]. They stay 0, and no gradient is read, if found_inf is 0.
    """

    def __init__(self, table: Table, like: torch.Tensor, gradients: int) -> None:
        self._table = table
        # Has its device and dtype, but does not keep the gradient alive.
        self._like = like.new_empty(0)
        self._gradients = gradients
        self._unused: list[torch.Tensor] = []
        self._ahead = 1
        """How many counts to make at once: the more the longer the gradients stay, up to `_COUNTS_BYTES`."""

    def __call__(self, found_inf: torch.Tensor) -> torch.Tensor:
        if not self._unused:
            shape = self._ahead, self._gradients, 2
            zeros = torch.zeros(shape, dtype=torch.int64, device=self._like.device)
            self._unused += zeros
            self._ahead = max(min(2 * self._ahead, _COUNTS_BYTES // zeros[0].nbytes), 1)
        counts = self._unused.pop()
        _launch("attribute", self._table, self._like, counts, found_inf)
        return counts


def _rehearse(device: torch.device) -> None:
    """Run once, on the current stream, everything that is slow the first time: 20 ms for pinned memory alone."""
    gradients, one = [torch.zeros(1, device=device)], torch.ones(1, device=device)
    kept = Cache()
    for factor in (None, one):
        kept._measure(gradients, MEASURED, None if factor is None else one.clone(), factor, nothing)
    Readback(Counter(kept._table(gradients, MEASURED), gradients[0], 1)(one))


def _current(device: torch.device) -> AbstractContextManager[object]:
    other = device.type == "cuda" and device.index != torch.cuda.current_device()
    return torch.cuda.device(device) if other else nullcontext()


def _launch(
    name: str, table: Table, like: torch.Tensor, *arguments: torch.Tensor | None, **flags: bool
) -> None:
    if not table.grid:
        return
    dtypes = tuple([None if each is None else each.dtype for each in arguments])
    kernel = _kernel(name, like.dtype, dtypes, tuple(flags.items()))
    try:
        launch = loading.launcher(like.device, kernel)
        with _current(like.device):
            launch(table.grid, table.pointers, table.chunks, *arguments)
    except Unsupported:
        raise
    except Exception as error:
        signals.let_through(error)
        raise KernelError(f"the kernel {name!r} for {like.dtype} did not start: {error}") from error


@cache
def _kernel(
    name: str,
    dtype: torch.dtype,
    dtypes: tuple[torch.dtype | None, ...],
    flags: tuple[tuple[str, bool], ...],
) -> Kernel:
    types = tuple(None if each is None else _named(each) for each in dtypes)
    return Kernel(name, _named(dtype), types, flags)


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
