"""Compiles kernels, each in a process of its own: Triton keeps Python's lock for so long that training would stall.

That process needs no GPU and imports no torch. It prints a line of JSON and then the machine code.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

from ampmon.system import interpreter


_LOOK_S = 0.1
"""How often is looked whether the training has ended meanwhile."""


class Kernel(NamedTuple):
    """A kernel as it is compiled once."""

    name: str
    dtype: str
    """Of the gradients, by torch's name: ``float32``."""
    types: tuple[str | None, ...]
    """Dtypes of what it is given behind its tables; None for what it is not given."""
    flags: dict[str, bool]
    gpu: str
    """The architecture, by its maker's name: ``sm_90``, ``gfx942``."""
    lanes: int
    """Threads of a warp."""


class Binary(NamedTuple):
    """A kernel as a driver loads it."""

    code: bytes
    symbol: str
    threads: int
    """Of each program."""
    shared: int
    """Bytes of shared memory that a launch asks for."""


def compile_elsewhere(kernel: Kernel) -> Binary:
    """Compile a kernel in a process of its own, and wait for it: a second from Triton's cache on disk, else some.

    Raises `RuntimeError` with what that process said last; OSError where it cannot be started.
    """
    if not interpreter.available():
        raise RuntimeError("Python is embedded in another program: there is none to compile with")
    command = interpreter.command("ampmon.probe.compiler", json.dumps(kernel))
    # No pipes: a worker that is forked meanwhile would hold them open.
    with TemporaryFile() as output, TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            cwd=interpreter.ROOT,
        )
        _wait(process)
        if process.returncode:
            said = _read(errors).decode(errors="replace").strip().rpartition("\n")[2]
            raise RuntimeError(said or f"the compiler ended with {process.returncode}")
        header, _, code = _read(output).partition(b"\n")
    return Binary(code, *json.loads(header))


def _wait(process: subprocess.Popen[bytes]) -> None:
    while True:
        try:
            process.wait(_LOOK_S)
            return
        except subprocess.TimeoutExpired:
            if not threading.main_thread().is_alive():
                process.kill()


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


class _Driver:
    """Stands where Triton looks for a GPU."""

    def __init__(self, kernel: Kernel) -> None:
        from triton.backends.compiler import GPUTarget

        amd = kernel.gpu.startswith("gfx")
        self._target = (
            GPUTarget("hip", kernel.gpu, kernel.lanes)
            if amd
            else GPUTarget("cuda", int(kernel.gpu.removeprefix("sm_")), kernel.lanes)
        )

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> Any:
        return self._target  # Triton keeps what it compiled by device

    def get_current_stream(self, _: object) -> int:
        return 0


class _Pointer:
    """What a kernel is given: an address, of which nothing is known but the dtype there."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def data_ptr(self) -> int:
        return 0


def compiled(kernel: Kernel) -> Any:
    """A kernel as Triton compiles it, in this process."""
    from triton.runtime import driver

    from ampmon.probe import programs

    driver.set_active(_Driver(kernel))
    amd = kernel.gpu.startswith("gfx")
    function, options = programs.variant(
        kernel.name, kernel.dtype, kernel.lanes, amd=amd, **kernel.flags
    )
    given = ["int64", "int64", *kernel.types]
    pointers = [None if dtype is None else _Pointer(dtype) for dtype in given]
    return function.warmup(*pointers, grid=(1,), **options)


def main() -> None:
    """Compile the kernel that the one argument describes, in JSON."""
    kernel = Kernel(*json.loads(sys.argv[1]))
    made = compiled(kernel)
    told = made.metadata
    code = made.asm["hsaco" if kernel.gpu.startswith("gfx") else "cubin"]
    header = told.name, told.num_warps * kernel.lanes, told.shared
    sys.stdout.buffer.write(json.dumps(header).encode() + b"\n" + code)


if __name__ == "__main__":
    main()
