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
    """A kernel as it is compiled once for each architecture."""

    name: str
    dtype: str
    """Of the gradients, by torch's name: ``float32``."""
    types: tuple[str | None, ...]
    """Dtypes of what it is given behind its tables; None for what it is not given."""
    flags: tuple[tuple[str, bool], ...]


class Target(NamedTuple):
    """What it is compiled for."""

    gpu: str
    """The architecture, by its maker's name: ``sm_90``, ``gfx942``."""
    lanes: int
    """Threads of a warp."""

    @property
    def amd(self) -> bool:
        return self.gpu.startswith("gfx")


class Binary(NamedTuple):
    """A kernel as a driver loads it."""

    code: bytes
    symbol: str
    threads: int
    """Of each program."""
    shared: int
    """Bytes of shared memory that a launch asks for."""


class Compilation:
    """A kernel that is being compiled by a process of its own: a second from Triton's cache on disk, else some.

    Raises RuntimeError, or OSError, where that cannot be started.
    """

    def __init__(self, kernel: Kernel, target: Target) -> None:
        if not interpreter.available():
            raise RuntimeError("Python is embedded in a program: there is none to compile with")
        # No pipes: a worker that is forked meanwhile would hold them open.
        self._output = TemporaryFile()  # noqa: SIM115 - `result` closes them
        self._errors = TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            interpreter.command("ampmon.probe.compiler", json.dumps((kernel, target))),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            cwd=interpreter.ROOT,
        )

    def result(self) -> Binary:
        """Wait for it. Raises RuntimeError with the last line that the process said, where it failed."""
        _wait(self._process)
        with self._output as output, self._errors as errors:
            if self._process.returncode:
                said = _read(errors).decode(errors="replace").strip().rpartition("\n")[2]
                raise RuntimeError(said or f"the compiler ended with {self._process.returncode}")
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

    def __init__(self, target: Target) -> None:
        from triton.backends.compiler import GPUTarget

        backend, gpu = ("hip", target.gpu) if target.amd else ("cuda", int(target.gpu[3:]))
        self._target = GPUTarget(backend, gpu, target.lanes)

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


def compiled(kernel: Kernel, target: Target) -> Any:
    """A kernel as Triton compiles it, in this process."""
    from triton.runtime import driver

    from ampmon.probe import programs

    driver.set_active(_Driver(target))
    name, dtype, types, flags = kernel
    function, options = programs.variant(name, dtype, target.lanes, amd=target.amd, **dict(flags))
    given = [None if each is None else _Pointer(each) for each in ("int64", "int64", *types)]
    return function.warmup(*given, grid=(1,), **options)


def main() -> None:
    """Compile the kernel, for the target, that the one argument names in JSON."""
    kernel, target = json.loads(sys.argv[1])
    made = compiled(Kernel(*kernel), target := Target(*target))
    said = made.metadata
    header = said.name, said.num_warps * target.lanes, said.shared
    code = made.asm["hsaco" if target.amd else "cubin"]
    sys.stdout.buffer.write(json.dumps(header).encode() + b"\n" + code)


if __name__ == "__main__":
    main()
