"""An accelerator without hardware: torch's PrivateUse1 backend, asynchronous and strict, built from the C++ files here.

It is for tests of code that must not wait for a device. Its results are the CPU's. Only a process that has not run a
backward pass yet can load it, because torch counts its devices at the first one.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

import torch


NAME = "emulated"
HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
CACHE = Path(sys.prefix) / "emulated-device"
"""In the environment whose torch the library is linked with, so it is built once for it and deleted with it."""
_WORK = ctypes.CFUNCTYPE(None)


def build() -> Path:
    """Return the library's path; compile it, in about 10 s, unless it exists for this torch and these sources."""
    sources = sorted(HERE.glob("*.cpp"))
    texts = b"".join(each.read_bytes() for each in (*sources, *HERE.glob("*.h")))
    library = CACHE / f"{torch.__version__}-{hashlib.sha256(texts).hexdigest()[:16]}.so"
    if not library.exists():
        root = Path(torch.__file__).parent
        CACHE.mkdir(exist_ok=True)
        part = library.with_suffix(f".{os.getpid()}")
        include = [f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include"]
        linked = [f"-L{root}/lib", f"-Wl,-rpath,{root}/lib", "-lc10", "-ltorch", "-ltorch_cpu"]
        options = ["-std=c++20", "-O1", "-fPIC", "-shared", "-pthread", *include]
        # Compile one unit, because torch's headers take nearly all of the time.
        unit = "".join(f'#include "{each}"\n' for each in sources)
        command = [str(COMPILER), *options, "-x", "c++", "-", "-o", str(part), *linked]
        done = subprocess.run(command, input=unit, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        part.replace(library)
    return library


class Graph:
    """The work that a stream was given during a capture, which ran none of it."""

    def __init__(self, library: ctypes.CDLL, number: int) -> None:
        self._library, self._number = library, number

    def replay(self) -> None:
        """Enqueue the captured work."""
        self._library.emulated_replay(self._number)


class Device:
    """Controls the emulated device, of which a process has one."""

    def __init__(self) -> None:
        torch.utils.rename_privateuse1_backend(NAME)
        library = str(build())
        torch.ops.load_library(library)
        self._library = ctypes.CDLL(library)
        self._library.emulated_lines.restype = ctypes.c_char_p
        self._library.emulated_host_address.restype = ctypes.c_void_p
        self._library.emulated_host_address.argtypes = [ctypes.c_void_p]
        torch._register_device_module(NAME, self._module())

    def _module(self) -> ModuleType:
        """Return `torch.emulated`, with the functions that torch looks for in it."""
        module = ModuleType(f"torch.{NAME}")
        module.__dict__.update(
            is_available=lambda: True,
            is_initialized=lambda: True,
            device_count=lambda: 1,
            current_device=lambda: 0,
            is_current_stream_capturing=lambda: bool(self._library.emulated_capturing()),
            get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
            manual_seed_all=lambda seed: None,
            _is_in_bad_fork=lambda: False,
        )
        return module

    def reset(self) -> None:
        """Run without pause, strictness or delays, and forget waits and violations."""
        self._library.emulated_pause(0)
        self._library.emulated_strict(0)
        self._library.emulated_jitter(0)
        torch.accelerator.synchronize()
        self._library.emulated_forget()

    def paused(self) -> AbstractContextManager[None]:
        """Start no task meanwhile; a wait for the device raises."""
        return self._switched_on(self._library.emulated_pause)

    def strict(self) -> AbstractContextManager[None]:
        """Raise on every wait for the device."""
        return self._switched_on(self._library.emulated_strict)

    @contextmanager
    def _switched_on(self, switch: Callable[[int], None]) -> Iterator[None]:
        switch(1)
        try:
            yield
        finally:
            switch(0)

    def jitter(self, us: int) -> None:
        """Delay one task in sixteen by up to ``us`` microseconds."""
        self._library.emulated_jitter(us)

    def forget(self) -> None:
        """Forget waits and violations."""
        self._library.emulated_forget()

    def waits(self) -> list[str]:
        """Return what the host waited for, or would have waited for."""
        return self._lines(0)

    def violations(self) -> list[str]:
        """Return what was done during a capture that would have broken it."""
        return self._lines(1)

    def _lines(self, violations: int) -> list[str]:
        text: bytes = self._library.emulated_lines(violations)
        return text.decode().splitlines()

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """Capture what the current stream is given, and run none of it."""
        number = self._library.emulated_capture()
        try:
            yield Graph(self._library, number)
        finally:
            self._library.emulated_end_capture(number)

    def run(self, work: Callable[[], None]) -> None:
        """Enqueue host work on the current stream. It may read the device's memory at its `host_address`."""
        done = _WORK(work)
        self._kept.append(done)
        self._library.emulated_enqueue(done)

    _kept: list[object] = []

    def host_address(self, address: int) -> int:
        """Return the address at which a task finds the memory of a device address."""
        found: int = self._library.emulated_host_address(address)
        return found


@cache
def device() -> Device:
    """Return the device, which the first call loads."""
    return Device()
