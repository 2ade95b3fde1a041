"""The Triton kernels: in the interpreter, in the compiler's output, on a GPU, and where there is no Triton."""

from __future__ import annotations

import importlib.util
import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version

import scripts
from ampmon.probe import kernels


TESTS = Path(__file__).parents[1]
HAS_TRITON = importlib.util.find_spec("triton") is not None
SUITE = "probe/kernel_suite.py"
IN_THE_SCALER = (
    "scaler/fused_suite.py",
    "scaler/test_ledger.py",
    "scaler/test_gradient_kinds.py",
)
CHOSEN = "fused_suite or kinds or route or culprit or zero or clipping or maximum"

needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is built for Linux on x86-64 only")
TOOLS = HAS_TRITON and Version(version("triton")) >= Version("3.9")
needs_tools = pytest.mark.skipif(
    not TOOLS,
    reason="without a GPU Triton is asked from 3.9 on, whose interpreter treats NaN as a GPU does",
)


def run_suites(interpret: bool, folder: Path, *suites: str, chosen: str = "") -> int:
    """Run test files in a process of their own: Triton decides on import whether to interpret. Returns the passes."""
    # numpy, which the interpreter computes with, warns of overflows that are meant.
    options = ("-q", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning", "-k", chosen)
    done = scripts.run(
        *("-m", "pytest", *options, *(str(TESTS / suite) for suite in suites)),
        cwd=TESTS.parent,
        preload="torch",
        env={
            **os.environ,
            "TRITON_INTERPRET": str(int(interpret)),
            "TRITON_CACHE_DIR": str(folder),
        },
    )
    passed = re.search(r"\b(\d+) passed", done.stdout)
    assert passed, done.stdout
    return int(passed[1])


@needs_triton
def test_the_kernels_under_the_interpreter(tmp_path: Path) -> None:
    """Every fact of kernel_suite.py, and what holds of the scaler, holds where the interpreter runs the kernels."""
    if TOOLS:
        chosen = f"kernel_suite or {CHOSEN}"
        assert run_suites(True, tmp_path, SUITE, *IN_THE_SCALER, chosen=chosen) >= 60
    else:
        assert run_suites(True, tmp_path, *IN_THE_SCALER, chosen=CHOSEN) >= 30


@needs_triton
@pytest.mark.gpu
def test_the_kernels_on_a_gpu(tmp_path: Path) -> None:
    """Every fact of kernel_suite.py holds on a CUDA device."""
    assert run_suites(False, tmp_path, SUITE) >= 10


def compile_for(capability: int, name: str, dtype: torch.dtype, **flags: bool) -> Any:
    """A kernel as Triton compiles it for a card that need not be here."""
    import triton
    from triton.backends.compiler import GPUTarget

    from ampmon.probe import programs

    kernel = getattr(programs, name)
    signature = {"pointers": "*i64", "chunks": "*i64", "into": "*i64", "found_inf": "*fp32"}
    constants: dict[str, Any] = {"DTYPE": programs.ELEMENTS[dtype], **flags}
    if name == "measure":
        signature["inv_scale"] = "*fp32"
    source = triton.compiler.ASTSource(
        kernel, signature | dict.fromkeys(constants, "constexpr"), constexprs=constants
    )
    options = {"num_warps": programs.WARPS, "num_stages": 1, "enable_fp_fusion": True}
    if not flags["GAPS"]:
        options["maxnreg"] = programs.REGISTERS
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@needs_tools
@pytest.mark.parametrize(
    ("capability", "name", "dtype", "flags"),
    [
        (80, "measure", torch.float32, {"GAPS": False, "UNSCALE": True}),
        (80, "measure", torch.bfloat16, {"GAPS": False, "UNSCALE": False}),
        (90, "measure", torch.float16, {"GAPS": True, "UNSCALE": True}),
        (90, "attribute", torch.float64, {"GAPS": False}),
    ],
)
def test_the_compiler_takes_the_kernels(
    capability: int,
    name: str,
    dtype: torch.dtype,
    flags: dict[str, bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compiled for an A100 or an H100, a kernel reads 16 bytes at a time and adds to global memory unordered."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    ptx = compile_for(capability, name, dtype, **flags).asm["ptx"]
    assert re.search(r"ld\.global\.v(4\.b32|2\.b64)", ptx)
    assert ("st.global.v4.b32" in ptx) == flags.get("UNSCALE", False)
    assert "red.global.gpu.relaxed.add.u64" in ptx
    assert not re.search(r"(atom|red)\.global\.\w+\.acq_rel", ptx)
    assert "cp.async" not in ptx


@needs_triton
def test_a_kernel_that_cannot_start_leaves_gradients_alone() -> None:
    """Where Triton finds no device for them, unscaling raises KernelError with Triton's own as the cause."""
    gradient, found, inv_scale = torch.ones(5), torch.zeros(1), torch.tensor([0.5])
    with pytest.raises(kernels.KernelError, match="measure") as raised:
        kernels.Cache().unscale([gradient], found, inv_scale)
    assert raised.value.__cause__ is not None
    assert (gradient == 1).all()
    assert found.item() == 0


@pytest.mark.parametrize("importable", [True, False])
def test_triton_is_not_imported_before_a_launch(importable: bool) -> None:
    """Asking whether kernels are supported imports no Triton; without one, and on a CPU, they are not."""
    code = (
        "import sys\n" + ("" if importable else "sys.modules['triton'] = None\n") + "import torch\n"
        "from ampmon.probe import kernels\n"
        "print([kernels.supported(torch.device(name)) for name in ('cpu', 'mps', 'cuda')])\n"
        "print(bool(sys.modules.get('triton')))\n"
    )
    done = scripts.run("-c", code, preload="torch")
    assert done.stdout.splitlines() == [str([False, False, importable and HAS_TRITON]), "False"]
