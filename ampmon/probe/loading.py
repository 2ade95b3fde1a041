"""The compiled kernels of each device, and what is not ready yet. Knows neither gradients nor tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ampmon.probe.compiler import Compilation, Kernel, Target
from ampmon.probe.driver import Function, capture_allowed
from ampmon.probe.table import Unsupported
from ampmon.probe.warming import Warmer


_PLAIN = ("GAPS", False)
ORDINARY = (
    Kernel("measure", "float32", ("int64", "float32", "float32"), (("UNSCALE", True), _PLAIN)),
    Kernel("measure", "float32", ("int64", None, None), (("UNSCALE", False), _PLAIN)),
    Kernel("attribute", "float32", ("int64", "float32"), (_PLAIN,)),
)
"""What most trainings launch."""


class NotReady(Unsupported):
    """Kernels are being compiled, by other processes: for now nothing is measured there."""


_warmer: Warmer[Any] = Warmer()
_functions: dict[tuple[torch.device, Kernel], Function] = {}


def compiling() -> bool:
    """Whether a kernel that was asked for is not compiled yet."""
    return _warmer.busy


def prepare(device: torch.device, rehearse: Callable[[torch.device], None]) -> None:
    """Raise `NotReady` until the ordinary kernels of a GPU are loaded, and ``rehearse`` has launched them.

    That takes some seconds after the first call, or one where Triton's own cache on disk has them.
    """
    if not _warmer.made(device, partial(_prepare, device, rehearse)):
        raise NotReady("the kernels are being compiled")


def _prepare(device: torch.device, rehearse: Callable[[torch.device], None]) -> bool:
    target = architecture(device)
    compilations = [(kernel, Compilation(kernel, target)) for kernel in ORDINARY]
    with capture_allowed():
        for kernel, compilation in compilations:
            _functions[device, kernel] = Function(compilation.result(), device)
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
            rehearse(device)
    return True


def launcher(device: torch.device, kernel: Kernel) -> Callable[..., None]:
    """What launches a kernel, given a grid and its arguments. Raises `NotReady` until it is loaded."""
    if device.type == "cpu":
        return partial(interpret, kernel)
    function = _functions.get((device, kernel)) or _warmer.made(
        (device, kernel), partial(_load, device, kernel)
    )
    if function is None:
        raise NotReady(f"the kernel {kernel.name!r} is being compiled")
    return function


def _load(device: torch.device, kernel: Kernel) -> Function:
    compilation = Compilation(kernel, architecture(device))
    with capture_allowed():
        return Function(compilation.result(), device)


def interpret(kernel: Kernel, grid: int, *arguments: torch.Tensor | None) -> None:
    """Run a kernel in Triton's interpreter, where TRITON_INTERPRET is 1."""
    from ampmon.probe import programs

    function, options = programs.variant(
        kernel.name, kernel.dtype, 32, amd=False, **dict(kernel.flags)
    )
    function[(grid,)](*arguments, **options)


def architecture(device: torch.device) -> Target:
    """What a kernel is to be compiled for."""
    properties = torch.cuda.get_device_properties(device)
    lanes = getattr(properties, "warp_size", 32)
    if torch.version.hip is not None:
        return Target(str(properties.gcnArchName).partition(":")[0], lanes)
    return Target(f"sm_{properties.major}{properties.minor}", lanes)
