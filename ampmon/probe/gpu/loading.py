"""Compiles and loads the kernels of each device, and reports those that are not ready yet."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable
from functools import partial

import torch

from ampmon.probe.gpu.background_jobs import BackgroundJobs
from ampmon.probe.gpu.compiler import Architecture, Compiler, Kernel
from ampmon.probe.gpu.driver import Function, capture_allowed
from ampmon.probe.gpu.table import Unsupported


_PLAIN = ("GAPS", False)
ORDINARY = (
    Kernel("measure", "float32", ("int64", "float32", "float32"), (("UNSCALE", True), _PLAIN)),
    Kernel("measure", "float32", ("int64", None, None), (("UNSCALE", False), _PLAIN)),
    Kernel("attribute", "float32", ("int64", "float32"), (_PLAIN,)),
)
"""The kernels that most trainings launch."""


class NotReady(Unsupported):
    """Another process is still compiling the kernels, so nothing is measured yet."""


_warmer: BackgroundJobs[bool] = BackgroundJobs()
_functions: dict[tuple[torch.device, Kernel], Function] = {}
_compilers: list[Compiler] = []
"""The compiler that was started before the first request for a kernel."""


def compiling() -> bool:
    """Return whether a requested kernel is not compiled yet."""
    return _warmer.busy


def expect() -> None:
    """Start the compiler ahead of the first request for a kernel, because starting it later would stop training."""
    if not (_compilers or _functions or _warmer.busy):
        with contextlib.suppress(Exception):  # the first request for a kernel reports it
            _compilers.append(Compiler())
            atexit.register(_end)


def _end() -> None:
    while _compilers:
        _compilers.pop().__exit__()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_compilers.clear)  # it is the parent's


def prepare(device: torch.device, rehearse: Callable[[torch.device], None]) -> None:
    """Raise `NotReady` until a GPU's ordinary kernels are loaded and ``rehearse`` has launched them.

    That takes some seconds after the first call, or one if Triton's own disk cache has them.
    """
    if not _warmer.made(device, partial(_prepare, device, rehearse)):
        raise NotReady("the kernels are being compiled")


def _prepare(device: torch.device, rehearse: Callable[[torch.device], None]) -> bool:
    _load(device, *ORDINARY)
    with capture_allowed(), torch.cuda.device(device):
        # On this thread's stream, the default one, because requesting another creates dozens of streams at once.
        rehearse(device)
    return True


def _load(device: torch.device, *kernels: Kernel) -> bool:
    target = architecture(device)
    with _compilers.pop() if _compilers else Compiler() as compiler:
        binaries = [compiler.compile(kernel, target) for kernel in kernels]
    with capture_allowed():
        for kernel, binary in zip(kernels, binaries, strict=True):
            _functions[device, kernel] = Function(binary, device)
    return True


def launcher(device: torch.device, kernel: Kernel) -> Callable[..., None]:
    """Return a function that launches a kernel with a grid and its arguments. Raises `NotReady` until it is loaded."""
    if device.type == "cpu":
        return partial(interpret, kernel)
    function = _functions.get((device, kernel))
    if function is None:
        _warmer.made((device, kernel), partial(_load, device, kernel))
        function = _functions.get((device, kernel))
    if function is None:
        raise NotReady(f"the kernel {kernel.name!r} is being compiled")
    return function


def interpret(kernel: Kernel, grid: int, *arguments: torch.Tensor | None) -> None:
    """Run a kernel in Triton's interpreter. TRITON_INTERPRET must be 1."""
    from ampmon.probe.gpu import programs

    function, options = programs.variant(
        kernel.name, kernel.dtype, 32, amd=False, **dict(kernel.flags)
    )
    function[(grid,)](*arguments, **options)


def architecture(device: torch.device) -> Architecture:
    properties = torch.cuda.get_device_properties(device)
    lanes = getattr(properties, "warp_size", 32)
    if torch.version.hip is not None:
        return Architecture(str(properties.gcnArchName).partition(":")[0], lanes)
    return Architecture(f"sm_{properties.major}{properties.minor}", lanes)
