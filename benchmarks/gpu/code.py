"""Every variant of the kernels, compiled by Triton for this GPU: seconds to compile, registers, spilled bytes."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent import futures
from multiprocessing import get_context
from typing import Any

import torch

from ampmon.probe.gpu import loading
from benchmarks import kernel_code
from benchmarks.gpu.stage_results import StageResults


ELSEWHERE = "sm_90"
"""The GPU to compile for if there is none."""
WORKERS = 8
RESERVE_S = 3.0


def run(results: StageResults, place: str, limit_s: float) -> None:
    """Compile the variants in several processes with an empty cache, and report each."""
    until = time.monotonic() + limit_s - RESERVE_S
    workers = min(os.cpu_count() or 1, WORKERS)
    with tempfile.TemporaryDirectory() as cold:
        os.environ["TRITON_CACHE_DIR"] = cold
        pool = futures.ProcessPoolExecutor(workers, get_context("spawn"))
        numbers = range(len(kernel_code.variants()))
        jobs = [pool.submit(made, architecture(place), number) for number in numbers]
        rows = (job.result() for job in futures.as_completed(jobs, until - time.monotonic()))
        try:
            report_variants(results, rows, len(numbers))
        except futures.TimeoutError:
            results.fact("compiling", "the time was over")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def architecture(place: str) -> str:
    """The compiler's name of the GPU."""
    return loading.architecture(torch.device(place)).gpu if place == "cuda" else ELSEWHERE


def made(gpu: str, number: int) -> dict[str, Any]:
    """A row for one variant. If it does not compile, ``note`` says why."""
    variant = kernel_code.variants()[number]
    row: dict[str, Any] = {"variant": str(variant), "gpu": gpu, "seconds": None}
    row |= {"registers": None, "spilled": None, "ordinary": variant in kernel_code.LOOPS}
    began = time.perf_counter()
    try:
        kernel = kernel_code.compiled(gpu, variant)
        row["seconds"] = round(time.perf_counter() - began, 2)
        row["registers"], row["spilled"] = kernel_code.usage(kernel)
        return {**row, "note": ""}
    except Exception as error:
        return {**row, "note": f"{type(error).__name__}: {str(error)[-300:]}"}


def report_variants(results: StageResults, rows: Iterable[dict[str, Any]], variants: int) -> None:
    """Report the variants as they are compiled."""
    for done in _together(rows):
        results.rows("variants", done)
        compiled = [row for row in done if row["seconds"] is not None]
        failed = [row["variant"] for row in done if row["seconds"] is None]
        holds = False if failed else True if len(done) == variants else None
        number = f"{len(compiled)} of {variants}"
        results.bar("all variants of the kernels compile", holds, number, "all", ", ".join(failed))
        spilled = [row["spilled"] for row in compiled if row["ordinary"]]
        known = [each for each in spilled if each is not None]
        all_known = len(known) == len(kernel_code.LOOPS)
        total = sum(known)
        holds = False if total else True if all_known else None
        value = total if known else None
        results.bar("spills in ordinary loops, bytes", holds, value, 0, f"{len(known)} loops")


def _together(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    done: list[dict[str, Any]] = []
    for row in rows:
        done.append(row)
        yield done
