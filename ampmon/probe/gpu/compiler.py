"""Compiles kernels in a separate process, because Triton holds Python's lock for so long that training would stall.

That process needs no GPU and no torch. It reads lines of JSON, and answers each with a line of JSON and machine code.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from ampmon.system import interpreter


_LOOK_S = 0.1
"""Seconds between checks for the end of the training."""
_PATIENCE_S = 5.0
"""Seconds that the process may take to end."""


class Kernel(NamedTuple):
    """A kernel variant, compiled once for each architecture."""

    name: str
    dtype: str
    """The gradients' dtype by torch's name: ``float32``."""
    types: tuple[str | None, ...]
    """Dtypes of the arguments after the tables; None for an argument that is None."""
    flags: tuple[tuple[str, bool], ...]


class Architecture(NamedTuple):
    """A GPU architecture to compile for."""

    gpu: str
    """The vendor's name of the architecture: ``sm_90``, ``gfx942``."""
    lanes: int
    """Threads of a warp."""

    @property
    def amd(self) -> bool:
        return self.gpu.startswith("gfx")


class MachineCode(NamedTuple):
    """A compiled kernel that a driver can load."""

    code: bytes
    symbol: str
    threads: int
    """Threads of each program."""
    shared: int
    """Bytes of shared memory that a launch requests."""


class Compiler:
    """A process that compiles kernels. It loads Triton at the first request.

    Starting it takes milliseconds, in which no other thread runs. Raises RuntimeError or OSError if it cannot start.
    """

    def __init__(self) -> None:
        if not interpreter.available():
            raise RuntimeError(
                "Python is embedded in another program, so no interpreter can run the compiler"
            )
        # No pipe: nobody reads it meanwhile, and the compiler would block once it is full.
        self._errors = TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            interpreter.command("ampmon.probe.gpu.compiler"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=interpreter.ROOT,
        )

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, by force if it takes too long."""
        process = self._process
        with contextlib.suppress(OSError, subprocess.TimeoutExpired), self._errors:
            # A forked worker may hold the pipe open, so send an empty line as the end.
            process.communicate(b"\n", _PATIENCE_S)
        if process.poll() is None:
            process.kill()
            process.wait()

    def compile(self, kernel: Kernel, target: Architecture) -> MachineCode:
        """Compile a kernel. Blocks for some seconds, or for one if Triton's own disk cache has it.

        Raises RuntimeError with the compiler's error if it fails.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps((kernel, target)).encode() + b"\n")
        process.stdin.flush()
        # The calling thread is no daemon: while a compiler hangs, the process could not exit.
        while not select.select([process.stdout], [], [], _LOOK_S)[0]:
            if not threading.main_thread().is_alive():
                process.kill()
        line = process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(_last_line(self._errors.read()) or "the compiler has ended")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return MachineCode(process.stdout.read(answer.pop("size")), **answer)


def _last_line(said: bytes) -> str:
    return said.decode(errors="replace").strip().rpartition("\n")[2]


class _StandIn:
    """Replaces Triton's GPU driver, so that Triton compiles for the target without a GPU present."""

    def __init__(self, target: Architecture) -> None:
        from triton.backends.compiler import GPUTarget

        backend, gpu = ("hip", target.gpu) if target.amd else ("cuda", int(target.gpu[3:]))
        self._target = GPUTarget(backend, gpu, target.lanes)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> Any:
        return self._target  # Triton's key for compiled kernels

    def get_current_stream(self, _: object) -> int:
        return 0


class _Pointer:
    """A kernel argument for compiling: an address with a known dtype and no memory."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def data_ptr(self) -> int:
        return 0


def compiled(kernel: Kernel, target: Architecture) -> Any:
    """Compile a kernel with Triton in this process, and return Triton's compiled kernel."""
    from triton.runtime import driver

    from ampmon.probe.gpu import programs

    driver.set_active(_StandIn(target))
    name, dtype, types, flags = kernel
    function, options = programs.variant(name, dtype, target.lanes, amd=target.amd, **dict(flags))
    given = [None if each is None else _Pointer(each) for each in ("int64", "int64", *types)]
    return function.warmup(*given, grid=(1,), **options)


def _answer(kernel: Kernel, target: Architecture) -> bytes:
    try:
        made = compiled(kernel, target)
    except Exception as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n"
    code: bytes = made.asm["hsaco" if target.amd else "cubin"]
    said = made.metadata
    header = {
        "size": len(code),
        "symbol": said.name,
        "threads": said.num_warps * target.lanes,
        "shared": said.shared,
    }
    return json.dumps(header).encode() + b"\n" + code


def main() -> None:
    """Compile the kernel that each line of input requests, until an empty line."""
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)  # all other output goes to stderr
        for line in iter(sys.stdin.readline, ""):
            if not line.strip():
                return
            kernel, target = json.loads(line)
            output.write(_answer(Kernel(*kernel), Architecture(*target)))
            output.flush()


if __name__ == "__main__":
    main()
