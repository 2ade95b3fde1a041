"""Launches compiled kernels through the CUDA or ROCm driver that torch has loaded.

It does not use Triton, whose import alone would stop training for a quarter of a second.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ampmon.probe.gpu.compiler import MachineCode


_MAPPED = Path("/proc/self/maps")
_SCRATCH = 0, 0
"""Newer Triton versions expect two more addresses, of memory that these kernels do not use."""
_OUT_OF_MEMORY = 2
_RELAXED = 2
"""CUDA and HIP share these numbers: the out-of-memory error, and the relaxed capture mode."""


class DriverError(Exception):
    """The driver refused to load or to launch a kernel."""


class Function:
    """A kernel loaded on one device. Loading takes about a millisecond and works on any thread."""

    def __init__(self, binary: MachineCode, device: torch.device) -> None:
        self._driver = _driver()
        self._threads, self._shared = binary.threads, binary.shared
        self._handle, module = ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):
            # A thread has a driver context only after its first request to the device.
            torch.cuda.mem_get_info(device)
            self._driver.load(ctypes.byref(module), binary.code)
            symbol = binary.symbol.encode()
            self._driver.find(ctypes.byref(self._handle), module, symbol)

    def __call__(self, grid: int, *tensors: torch.Tensor | None) -> None:
        """Enqueue a launch of ``grid`` programs on the current stream of the current device. Does not wait."""
        addresses = [each.data_ptr() for each in tensors if each is not None]
        addresses += _SCRATCH
        count = len(addresses)
        values = (ctypes.c_uint64 * count)(*addresses)
        first = ctypes.addressof(values)
        parameters = (ctypes.c_void_p * count)(*range(first, first + 8 * count, 8))
        stream = torch.cuda.current_stream().cuda_stream
        sizes = grid, 1, 1, self._threads, 1, 1, self._shared
        self._driver.launch(self._handle, *sizes, stream, parameters, None)


class _Driver:
    def __init__(self, library: str, names: Sequence[str]) -> None:
        self._library = ctypes.CDLL(library)
        self.load, self.find, self.launch, self.exchange = map(self._function, names)
        pointer, number = ctypes.c_void_p, ctypes.c_uint
        self.load.argtypes = [pointer, ctypes.c_char_p]
        self.find.argtypes = [pointer, pointer, ctypes.c_char_p]
        self.launch.argtypes = [pointer, *7 * [number], pointer, pointer, pointer]
        self.exchange.argtypes = [pointer]

    def _function(self, name: str) -> ctypes._NamedFuncPointer:
        function = self._library[name]

        def check(code: Any, *_: object) -> Any:
            if code:
                why = "out of memory" if code == _OUT_OF_MEMORY else f"driver error {code}"
                raise DriverError(f"{name} failed: {why}")
            return code

        function.restype = ctypes.c_int
        function.errcheck = check
        return function


@cache
def _driver() -> _Driver:
    library, prefix = (
        ("libcuda.so", "cu") if torch.version.hip is None else ("libamdhip64.so", "hip")
    )
    names = [f"{prefix}{each}" for each in ("ModuleLoadData", "ModuleGetFunction")]
    names.append("cuLaunchKernel" if prefix == "cu" else "hipModuleLaunchKernel")
    names.append(f"{prefix}ThreadExchangeStreamCaptureMode")
    return _Driver(_mapped(library), names)


@contextmanager
def capture_allowed() -> Iterator[None]:
    """Prevent this thread's driver calls from breaking a CUDA graph that another thread is capturing."""
    mode = ctypes.c_int(_RELAXED)
    _driver().exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        _driver().exchange(ctypes.byref(mode))


def _mapped(name: str) -> str:
    """Return the path of the library that torch has loaded."""
    places = _MAPPED.read_text()
    if (found := places.find(f"/{name}")) < 0:
        raise DriverError(f"{name} is not loaded")
    line = places[places.rfind("\n", 0, found) + 1 : places.find("\n", found)]
    return line.split(maxsplit=5)[-1]
