"""The scaler with kernels at work, as on a GPU: parity, ledger and kinds of gradients, under Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest

import scripts


HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SUITES = ("fused_suite.py", "test_ledger.py", "test_gradient_kinds.py")
CHOSEN = "fused_suite or kinds or route or culprit or zero or clipping or maximum"


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is built for Linux on x86-64 only"
)
def test_the_kernels_in_the_scaler(tmp_path: Path) -> None:
    """What holds of the scaler holds where kernels measure gradients in the pass that unscales them."""
    # numpy, which the interpreter computes with, warns of overflows that are meant.
    options = ("-q", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning", "-k", CHOSEN)
    done = scripts.run(
        *("-m", "pytest", *options, *(str(HERE / suite) for suite in SUITES)),
        cwd=ROOT,
        preload="torch",
        env={**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)},
    )
    assert re.search(r"\b[3-9]\d passed", done.stdout), done.stdout
