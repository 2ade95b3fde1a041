"""The suite's CPU tests under Triton's interpreter, and the code that Triton compiles for another GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kernel_code import LOOPS, compiled, usage
from older_torch import COMPILES, INTERPRETS
from suites import passes


@INTERPRETS
def test_the_scaler_with_the_kernels_under_the_interpreter() -> None:
    """The tests of the ledger and of gradient and optimizer kinds pass when the interpreter runs the kernels."""
    suites = ("scaler/test_ledger.py", "scaler/test_gradient_kinds.py")
    chosen = "kinds or route or culprit or zero or clipping or maximum"
    assert passes(*suites, chosen=chosen, TRITON_INTERPRET="1") >= 20


@COMPILES
def test_the_loops_that_people_run_fit_the_registers_of_amd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels compiled for AMD measure and unscale fp32 and fp16 without spilling, with 16-byte loads."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for variant in LOOPS[::2]:  # only the largest, because compiling takes time
        kernel = compiled("gfx942", variant)
        assert usage(kernel).spilled == 0, variant
        assert "buffer_load_dwordx4" in kernel.asm["amdgcn"]
        assert ("buffer_store_dwordx4" in kernel.asm["amdgcn"]) == variant.flags["UNSCALE"]
