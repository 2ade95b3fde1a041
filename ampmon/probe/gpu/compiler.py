"""Compiles kernels in a process of its own: Triton keeps Python's lock for so long that training would stall.

That process needs no GPU and no torch. It reads lines of JSON, and answers each with such a line and machine code.
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
"""So often it is checked whether the training has ended meanwhile."""
_PATIENCE_S = 5.0
"""So long the process may take to end."""


class Kernel(NamedTuple):
    """A kernel as it is compiled once for each architecture."""

    name: str
    dtype: str
    """Of the gradients, by torch's name: ``float32``."""
    types: tuple[str | None, ...]
    """Dtypes of what it is given behind its tables; None for what it is not given."""
    flags: tuple[tuple[str, bool], ...]


class Architecture(NamedTuple):
    """What it is compiled for."""

    gpu: str
    """The architecture, by its maker's name: ``sm_90``, ``gfx942``."""
    lanes: int
    """Threads of a warp."""

    @property
    def amd(self) -> bool:
        return self.gpu.startswith("gfx")


class MachineCode(NamedTuple):
    """A kernel as a driver loads it."""

    code: bytes
    symbol: str
    threads: int
    """Of each program."""
    shared: int
    """Bytes of shared memory that a launch asks for."""


class Compiler:
    """A process that compiles kernels. It loads Triton when it is asked for the first.

    Starting it takes milliseconds, in which no other thread runs. Raises RuntimeError, or OSError, where none can be
    started.
    """

    def __init__(self) -> None:
        if not interpreter.available():
            raise RuntimeError("Python is embedded in a program: there is none to compile with")
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
        """End the process."""
        process = self._process
        with contextlib.suppress(OSError, subprocess.TimeoutExpired), self._errors:
            # A worker that was forked holds the pipe open, and so a word says that this is the end.
            process.communicate(b"\n", _PATIENCE_S)
        if process.poll() is None:
            process.kill()
            process.wait()

    def compile(self, kernel: Kernel, target: Architecture) -> MachineCode:
        """Wait for a kernel: some seconds, or one if Triton's own cache on disk has it.

        Raises RuntimeError with the compiler's error where there is one.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps((kernel, target)).encode() + b"\n")
        process.stdin.flush()
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
    """Stands where Triton looks for a GPU."""

    def __init__(self, target: Architecture) -> None:
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


def compiled(kernel: Kernel, target: Architecture) -> Any:
    """A kernel as Triton compiles it, in this process."""
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
    """Compile what each line asks for, until one is empty."""
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)  # for whatever else is printed
        for line in iter(sys.stdin.readline, ""):
            if not line.strip():
                return
            kernel, target = json.loads(line)
            output.write(_answer(Kernel(*kernel), Architecture(*target)))
            output.flush()


if __name__ == "__main__":
    main()
