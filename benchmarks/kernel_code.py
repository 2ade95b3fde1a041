"""Compiles the kernels with Triton for GPUs that need not be present: registers, spills, and the code itself.

`make kernels` compiles every variant for every GPU (two minutes of processor time) and writes the table.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ampmon.probe.gpu import compiler
from benchmarks import report


RESULTS = Path(__file__).parent / "results" / "kernels.md"
GPUS = (
    "sm_75",
    "sm_80",
    "sm_86",
    "sm_89",
    "sm_90",
    "sm_100",
    "sm_120",
    "gfx90a",
    "gfx942",
    "gfx1100",
)


class Variant(NamedTuple):
    """A kernel's variant, compiled once for each GPU."""

    name: str
    dtype: torch.dtype
    flags: dict[str, bool]

    def __str__(self) -> str:
        flags = [flag.lower() for flag, on in self.flags.items() if on]
        return " ".join([self.name, str(self.dtype).removeprefix("torch."), *flags])


def variants() -> list[Variant]:
    """All variants that are ever launched."""
    floats = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    return [
        Variant("measure", dtype, {"UNSCALE": unscale})
        for dtype, unscale in product(floats, (False, True))
        if not unscale or dtype in floats[:2]
    ] + [Variant("attribute", dtype, {}) for dtype in floats]


LOOPS = [
    Variant("measure", dtype, {"UNSCALE": unscale})
    for dtype in (torch.float32, torch.float16)
    for unscale in (True, False)
]
"""The variants that run in ordinary training."""


def compiled(gpu: str, variant: Variant) -> Any:
    """Compile a kernel with Triton for a GPU, with the options of a launch there."""
    lanes = 64 if gpu.startswith("gfx9") else 32
    dtype = str(variant.dtype).removeprefix("torch.")
    unscales = "float32" if variant.flags.get("UNSCALE") else None
    types = ("int64", unscales, unscales) if variant.name == "measure" else ("int64", "float32")
    kernel = compiler.Kernel(variant.name, dtype, types, tuple(variant.flags.items()))
    return compiler.compiled(kernel, compiler.Architecture(gpu, lanes))


class Usage(NamedTuple):
    """A thread's registers, and the bytes that it spills to memory."""

    registers: int
    spilled: int

    def __str__(self) -> str:
        return f"{self.registers} + {self.spilled} B" if self.spilled else f"{self.registers}"


def usage(kernel: Any) -> Usage:
    """The usage that the assembler reports for a compiled kernel."""
    if "amdgcn" in kernel.asm:
        counts = dict(re.findall(r"\.(vgpr_count|vgpr_spill_count):\s*(\d+)", kernel.asm["amdgcn"]))
        return Usage(int(counts["vgpr_count"]), 4 * int(counts["vgpr_spill_count"]))
    import triton

    beside = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    tool = beside if beside.exists() else "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        said = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found, said
    return Usage(int(found[1]), int(found[2]))


def _of(gpu: str, number: int) -> Usage:
    return usage(compiled(gpu, variants()[number]))


def table(gpus: tuple[str, ...] = GPUS) -> str:
    """Registers and spilled bytes of every variant for these GPUs, as a Markdown table."""
    numbers = range(len(variants()))
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        made = {gpu: [pool.submit(_of, gpu, number) for number in numbers] for gpu in gpus}
        used = {gpu: [each.result() for each in row] for gpu, row in made.items()}
    return report.table(
        [
            {"variant": variant, **{gpu: str(used[gpu][number]) for gpu in gpus}}
            for number, variant in enumerate(variants())
        ]
    )


def main() -> None:
    RESULTS.write_text(
        "# The kernels' registers\n\n"
        f"What a thread needs, and what it spills to memory, as Triton {version('triton')} compiles every variant\n"
        "for GPUs that need not be here. A program has 128 threads. `make kernels` writes this table.\n\n"
        f"{table()}\n"
    )
    print(RESULTS)


if __name__ == "__main__":
    main()
