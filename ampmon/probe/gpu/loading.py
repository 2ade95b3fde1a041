"""Compiles the kernels of each device in the background, loads them, and launches them through the driver of torch."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from ampmon.probe.gpu.compiler import Architecture, Compiler, Kernel, MachineCode
from ampmon.probe.gpu.table import Unsupported


ORDINARY = (
    Kernel("measure", "float32", ("int64", "float32", "float32"), (("UNSCALE", True),)),
    Kernel("measure", "float32", ("int64", None, None), (("UNSCALE", False),)),
    Kernel("attribute", "float32", ("int64", "float32"), ()),
)
"""The kernels that most trainings launch."""


class NotReady(Unsupported):
    """Another process is still compiling the kernels, so nothing is measured yet."""


class BackgroundJobs:
    """Runs jobs on its own thread, each once and one after the other. Callers never wait.

    The interpreter's exit waits for the running job and drops the others. A forked child restarts the job that was
    running, once it requests one.
    """

    def __init__(self) -> None:
        self._waiting: dict[Hashable, Callable[[], object]] = {}
        """In order. A running job stays the first, so that it counts as busy and a forked child starts it again."""
        self._ended: dict[Hashable, Exception | None] = {}
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is running or waiting."""
        return bool(self._waiting)

    def done(self, key: Hashable, job: Callable[[], object]) -> bool:
        """Return whether the job has ended. The first call starts it.

        The job's error is raised once, as a RuntimeError. The next call starts the job again.
        """
        # In this order, since a job that ends meanwhile is entered as ended first.
        if key not in self._waiting:
            if key in self._ended:
                if (error := self._ended[key]) is None:
                    return True
                del self._ended[key]
                raise RuntimeError(str(error)) from error
            self._waiting[key] = job
        if self._thread is None or not self._thread.is_alive():
            try:
                # Explicitly no daemon: it would inherit that from torch's own threads, which may call this first.
                self._thread = threading.Thread(
                    target=self._work, name="ampmon-kernels", daemon=False
                )
                self._thread.start()
            except RuntimeError:  # no thread can start, or the interpreter is exiting
                self._thread = None
        return False

    def _work(self) -> None:
        while self._waiting and threading.main_thread().is_alive():
            (key, job), *_ = self._waiting.items()
            try:
                job()
                self._ended[key] = None
            except Exception as error:
                self._ended[key] = error
            del self._waiting[key]


_warmer = BackgroundJobs()
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
    if not _warmer.done(device, partial(_prepare, device, rehearse)):
        raise NotReady("the kernels are being compiled")


def _prepare(device: torch.device, rehearse: Callable[[torch.device], None]) -> None:
    _load(device, *ORDINARY)
    with capture_allowed(), torch.cuda.device(device):
        # On this thread's stream, the default one, because requesting another creates dozens of streams at once.
        rehearse(device)


def _load(device: torch.device, *kernels: Kernel) -> None:
    target = architecture(device)
    with _compilers.pop() if _compilers else Compiler() as compiler:
        binaries = [compiler.compile(kernel, target) for kernel in kernels]
    with capture_allowed():
        for kernel, binary in zip(kernels, binaries, strict=True):
            _functions[device, kernel] = Function(binary, device)


def launcher(device: torch.device, kernel: Kernel) -> Callable[..., None]:
    """Return a function that launches a kernel with a grid and its arguments. Raises `NotReady` until it is loaded."""
    if device.type == "cpu":
        return partial(interpret, kernel)
    key = device, kernel
    if key not in _functions and not _warmer.done(key, partial(_load, *key)):
        raise NotReady(f"the kernel {kernel.name!r} is being compiled")
    return _functions[key]


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
        # Modes follow the name, as in gfx90a:sramecc+:xnack-.
        return Architecture(str(properties.gcnArchName).partition(":")[0], lanes)
    return Architecture(f"sm_{properties.major}{properties.minor}", lanes)


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
        self._index = device.index
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
        # Needed only during the call: the driver copies them.
        values = (ctypes.c_uint64 * count)(*addresses)
        first = ctypes.addressof(values)
        parameters = (ctypes.c_void_p * count)(*range(first, first + 8 * count, 8))
        stream = torch._C._cuda_getCurrentRawStream(self._index)
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
