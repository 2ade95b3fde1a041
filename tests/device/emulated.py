"""An accelerator without hardware: torch's PrivateUse1 backend, asynchronous and strict, built from the C++ beside.

It is for tests of code that must not wait for a device. Its results are the CPU's. It can be loaded only by a process
that has not run a backward pass yet: torch counts its devices at the first.
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
"""In the environment whose torch it is linked with: it is built once for it, and goes with it."""
_WORK = ctypes.CFUNCTYPE(None)


def build() -> Path:
    """The library, compiled unless it is there already for this torch and these sources. Takes some 10 s."""
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
        # As one unit: nearly all of the time goes to torch's headers.
        unit = "".join(f'#include "{each}"\n' for each in sources)
        command = [str(COMPILER), *options, "-x", "c++", "-", "-o", str(part), *linked]
        done = subprocess.run(command, input=unit, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        part.replace(library)
    return library


class Graph:
    """What a stream was given while it was captured. It ran nothing then."""

    def __init__(self, library: ctypes.CDLL, number: int) -> None:
        self._library, self._number = library, number

    def replay(self) -> None:
        """Enqueue all of it."""
        self._library.emulated_replay(self._number)


class Device:
    """Controls the device: there is one, for all of the process."""

    def __init__(self) -> None:
        torch.utils.rename_privateuse1_backend(NAME)
        library = str(build())
        torch.ops.load_library(library)
        self._library = ctypes.CDLL(library)
        self._library.emulated_told.restype = ctypes.c_char_p
        self._library.emulated_host_address.restype = ctypes.c_void_p
        self._library.emulated_host_address.argtypes = [ctypes.c_void_p]
        torch._register_device_module(NAME, self._module())

    def _module(self) -> ModuleType:
        """What torch looks for in `torch.emulated`."""
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
        """Run on, without delays, and forget the waits."""
        self._library.emulated_pause(0)
        self._library.emulated_strict(0)
        self._library.emulated_jitter(0)
        torch.accelerator.synchronize()
        self._library.emulated_forget()

    def paused(self) -> AbstractContextManager[None]:
        """No task begins; who would wait for one gets an error."""
        return self._switched_on(self._library.emulated_pause)

    def strict(self) -> AbstractContextManager[None]:
        """Whoever would wait gets an error."""
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
        """Count waits and violations anew."""
        self._library.emulated_forget()

    def waits(self) -> list[str]:
        """For what the host has waited, or would have."""
        return self._told(0)

    def violations(self) -> list[str]:
        """What was done during a capture that would have broken it."""
        return self._told(1)

    def _told(self, violations: int) -> list[str]:
        text: bytes = self._library.emulated_told(violations)
        return text.decode().splitlines()

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """Record what the current stream is given, and run none of it."""
        number = self._library.emulated_capture()
        try:
            yield Graph(self._library, number)
        finally:
            self._library.emulated_end_capture(number)

    def run(self, work: Callable[[], None]) -> None:
        """Enqueue work of the host's on the current stream. It may read the device's memory by `host_address`."""
        done = _WORK(work)
        self._kept.append(done)
        self._library.emulated_enqueue(done)

    _kept: list[object] = []

    def host_address(self, address: int) -> int:
        """Where a task finds what is at an address of the device's."""
        found: int = self._library.emulated_host_address(address)
        return found


@cache
def device() -> Device:
    """The device, loaded at the first call."""
    return Device()
