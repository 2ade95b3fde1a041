"""The Triton kernels under the interpreter, as compiled code, on a GPU, and without Triton."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import scripts
from ampmon.probe.gpu import kernels, loading
from ampmon.probe.gpu.table import Table
from benchmarks.kernel_code import GPUS, LOOPS, RESULTS, Variant, compiled, usage, variants
from older_torch import COMPILES, HAS_TOOLS, HAS_TRITON, INTERPRETS
from suites import passes
from waiting import wait_for


SUITES = ("probe/kernel_suite.py", "probe/edges_suite.py")
IN_THE_SCALER = "scaler/fused_suite.py"

needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is built for Linux on x86-64 only")


@needs_triton
@INTERPRETS
def test_the_kernels_under_the_interpreter(tmp_path: Path) -> None:
    """The kernel suites and the scaler suite pass under Triton's interpreter."""
    suites = (*SUITES, IN_THE_SCALER) if HAS_TOOLS else (IN_THE_SCALER,)
    environment = {"TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    assert passes(*suites, **environment) >= (80 if HAS_TOOLS else 20)


@needs_triton
@pytest.mark.gpu
def test_the_kernels_on_a_gpu(tmp_path: Path) -> None:
    """The kernel suites pass on a CUDA device."""
    environment = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    assert passes(*SUITES, **environment) >= 60


@COMPILES
def test_the_loops_that_people_run_fit_the_registers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For sm_90, a common GPU, fp32 and fp16 kernels spill no register, load 16 bytes at a time and keep subnormals.

    `make test-campaigns` compiles for one AMD GPU, and `make kernels` compiles every kernel for ten GPUs.
    """
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for variant in LOOPS[1:3]:  # one per dtype, one of them unscales: compiling is slow
        kernel = compiled("sm_90", variant)
        assert usage(kernel).spilled == 0, variant
        code = kernel.asm["ptx"]
        assert re.search(r"ld\.global\.v4\.b32", code)
        assert ("st.global.v4.b32" in code) == variant.flags["UNSCALE"]
        assert ".ftz" not in code
        assert "red.global.gpu.relaxed.add.u64" in code
        assert not re.search(r"(atom|red)\.global\.\w+\.acq_rel", code)
        assert "cp.async" not in code


@COMPILES
@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(
            Variant("measure", torch.bfloat16, {"UNSCALE": False}),
            marks=pytest.mark.rare,
        ),
        Variant("measure", torch.float16, {"UNSCALE": True}),
        Variant("attribute", torch.float64, {}),
    ],
    ids=str,
)
def test_the_compiler_takes_the_kernels(
    variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other kernels compile too, with 16-byte loads, and keep subnormals."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    code = compiled("sm_90", variant).asm["ptx"]
    assert re.search(r"ld\.global\.v(4\.b32|2\.b64)", code)
    assert ".ftz" not in code


def test_the_table_of_registers_is_of_these_kernels() -> None:
    """The committed table has every variant and every GPU, and no spill in the common loops."""
    rows = [
        line.strip("| ").split(" | ") for line in RESULTS.read_text().splitlines() if "|" in line
    ]
    assert rows[0][1:] == list(GPUS)
    assert [row[0] for row in rows[2:]] == list(map(str, variants()))
    loops = {str(variant) for variant in LOOPS}
    assert [row for row in rows if row[0] in loops and any(" B" in cell for cell in row)] == []


DRIVER = """
unsigned launched, grid, threads, shared, mode;
unsigned long given[5];
int cuModuleLoadData(void **module, const char *code) { *module = (void *)code; return code[1] != 'E'; }
int cuModuleGetFunction(void **found, void *module, const char *name) { *found = module; return name[0] != 'a'; }
int cuLaunchKernel(void *code, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz,
                   unsigned bytes, void *stream, void **parameters, void **extra) {
  ++launched, grid = x * y * z, threads = tx * ty * tz, shared = bytes;
  for (int i = 0; i < 5; i++) given[i] = *(unsigned long *)parameters[i];
  return stream ? 2 : 0;
}
int cuThreadExchangeStreamCaptureMode(unsigned *wanted) {
  unsigned before = mode;
  mode = *wanted, *wanted = before;
  return 0;
}
"""


@COMPILES
@pytest.mark.skipif(
    shutil.which("cc") is None, reason="a driver is built for it, with a C compiler"
)
def test_a_launch_finds_what_was_compiled_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch is not ready until another process has compiled the kernel; then the driver gets its addresses."""
    (tmp_path / "driver.c").write_text(DRIVER)
    library = tmp_path / "driver.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True)
    streams = [0]
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(loading, "_mapped", lambda _: str(library))
    for name, value in {
        "device": lambda _: nullcontext(),
        "mem_get_info": lambda _: (1, 1),
        "current_device": lambda: 0,
        "get_device_properties": lambda _: SimpleNamespace(major=9, minor=0),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    current = "_cuda_getCurrentRawStream"
    monkeypatch.setattr(torch._C, current, lambda index: streams[index], raising=False)
    like = SimpleNamespace(device=torch.device("cuda:0"), dtype=torch.float32)
    numbers = [torch.zeros(4, dtype=torch.int64) for _ in range(3)]
    table = Table(numbers[0], numbers[1], 7, True, [])
    found = torch.zeros(1)

    def launched() -> bool:
        try:
            kernels._launch("attribute", table, like, numbers[2], found)
        except loading.NotReady:
            return False
        return True

    assert not launched()
    wait_for(launched)
    said = ctypes.CDLL(str(library))
    counts = [ctypes.c_uint.in_dll(said, name).value for name in ("launched", "grid", "threads")]
    assert counts == [1, 7, 128]
    given = (ctypes.c_uint64 * 5).in_dll(said, "given")
    assert list(given) == [*(each.data_ptr() for each in (*numbers, found)), 0]
    streams[0] = 1
    with pytest.raises(kernels.KernelError, match="cuLaunchKernel failed: out of memory"):
        launched()


EXPECTED = """
import os, sys
from ampmon.probe.gpu import loading
loading.expect()
loading.expect()
(compiler,) = loading._compilers
child = os.fork()
if not child:
    sys.exit(len(loading._compilers))
assert os.waitpid(child, 0)[1] == 0
assert compiler._process.poll() is None
print(compiler._process.pid)
"""


@needs_triton
def test_a_compiler_that_waits_ends_with_the_training() -> None:
    """One compiler is started ahead of need; a forked child leaves it alone, and it ends with the process."""
    done = scripts.run("-c", EXPECTED, preload="torch")
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


@needs_triton
def test_a_kernel_that_cannot_start_leaves_gradients_alone() -> None:
    """If Triton finds no device, unscaling raises KernelError, caused by Triton's error, and changes nothing."""
    gradient, found, inv_scale = torch.ones(5), torch.zeros(1), torch.tensor([0.5])
    with pytest.raises(kernels.KernelError, match="measure") as raised:
        kernels.Cache().unscale([gradient], found, inv_scale)
    assert raised.value.__cause__ is not None
    assert (gradient == 1).all()
    assert found.item() == 0


@pytest.mark.parametrize("importable", [True, False])
def test_triton_is_not_imported_before_a_launch(importable: bool) -> None:
    """`supported` imports no Triton; it is False on a CPU and without Triton."""
    code = (
        "import sys\n" + ("" if importable else "sys.modules['triton'] = None\n") + "import torch\n"
        "from ampmon.probe.gpu import kernels\n"
        "print([kernels.supported(torch.device(name)) for name in ('cpu', 'mps', 'cuda')])\n"
        "print(bool(sys.modules.get('triton')))\n"
    )
    done = scripts.run("-c", code, preload="torch")
    assert done.stdout.splitlines() == [str([False, False, importable and HAS_TRITON]), "False"]
