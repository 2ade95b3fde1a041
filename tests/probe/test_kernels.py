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


ROOT = Path(__file__).parents[2]
HAS_TRITON = importlib.util.find_spec("triton") is not None
SUITE = Path(__file__).with_name("kernel_suite.py")

needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is built for Linux on x86-64 only")
needs_tools = pytest.mark.skipif(
    not HAS_TRITON or Version(version("triton")) < Version("3.9"),
    reason="without a GPU Triton is asked from 3.9 on, whose interpreter treats NaN as a GPU does",
)


def run_suite(interpret: bool, folder: Path) -> None:
    """Run kernel_suite.py in a process of its own, for Triton decides when it is imported whether to interpret."""
    done = scripts.run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", str(SUITE)),
        cwd=ROOT,
        preload="torch",
        env={
            **os.environ,
            "TRITON_INTERPRET": str(int(interpret)),
            "TRITON_CACHE_DIR": str(folder),
        },
    )
    assert re.search(r"\b\d\d passed", done.stdout), done.stdout


@needs_tools
def test_the_kernels_under_the_interpreter(tmp_path: Path) -> None:
    """Every fact of kernel_suite.py holds under Triton's interpreter."""
    run_suite(interpret=True, folder=tmp_path)


@needs_triton
@pytest.mark.gpu
def test_the_kernels_on_a_gpu(tmp_path: Path) -> None:
    """Every fact of kernel_suite.py holds on a CUDA device."""
    run_suite(interpret=False, folder=tmp_path)


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
        (90, "measure", torch.float32, {"GAPS": False, "UNSCALE": True}),
        (80, "measure", torch.bfloat16, {"GAPS": False, "UNSCALE": False}),
        (90, "measure", torch.float16, {"GAPS": True, "UNSCALE": True}),
        (80, "attribute", torch.float64, {"GAPS": False}),
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
    """Each kernel compiles for an A100 and an H100, reads 16 bytes at a time, and adds to global memory unordered."""
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
