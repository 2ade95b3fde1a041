"""The packed form of sampled gradients, and their totals."""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from ampmon.numerics.histogram import BINS
from ampmon_server.store.pages import packing
from ampmon_server.store.pages.packing import Sample, Stack
from ampmon_server.store.samples import totals
from batches import counted, statistics


@given(
    parameters=st.integers(0, 5),
    seeds=st.lists(st.integers(0, 1000), min_size=1, max_size=6),
    wild=st.sampled_from([0.0, np.inf, np.nan]),
    extra=st.sampled_from([0, 2**40, -50]),
)
def test_a_block_gives_back_what_was_put_in(
    parameters: int, seeds: list[int], wild: float, extra: int
) -> None:
    """Every array of every sample survives packing: inf, NaN, no parameters, and counts that do not add up, too."""
    samples = [
        Sample(step, 1000 + step, 2.0**step, statistics(parameters, seed=seed))
        for step, seed in enumerate(seeds)
    ]
    samples[0].statistics.amax[:1] = wild
    samples[0].statistics.looked[:1] += extra
    samples[0].statistics.run_squares[:1] = [[64, 0, 2**50]]
    back = packing.stack_from_bytes(packing.block_to_bytes(Stack.of(samples))).samples()

    for before, after in zip(samples, back, strict=True):
        assert (before.step, before.time, before.scale) == (after.step, after.time, after.scale)
        for name in before.statistics.__slots__:
            np.testing.assert_array_equal(
                getattr(before.statistics, name), getattr(after.statistics, name), strict=True
            )


BLOCK = tuple(
    base64.b64decode(each)
    for each in (
        "KLUv/SS3FQQA8sYZI4BrGgMzoEbCFtBAo0+5f/5P/rqIXUOTMcEBNqu4s17aljsFz/IvjglqPKcISGE+l0Ia"
        "c71CpSi9xUGd5RlrlgAjsaLciyCUZzkIZB7OFqAhVomI4dxUkfzr39mn/dx2wYC256vtJAoAWmUlM/OkMrJL"
        "IQQXgzHAwGAQMPAAtCpWegI=",
        "KLUv/SSXTQMA1AWEpGFtYXiSozxmNMQQAMDAgIA/P39/q3N1bV9zcXVhcmVzkqM8ZjjEIJqaAACZmbm5+Pg/"
        "P39/qGVsZW1lbnRzkqM8dTLECOjo0NADAwcHp2ZvcndhcmTw8D8/f38DAFDCWLLzZAaUljvlSA==",
        "KLUv/WRBAC0CAHQDg6loaXN0b2dyYW2So3x1McUBAAoPAAAOFQCrcnVuX3NxdWFyZXPEDKVwZWFrc5KjfHUx"
        "xAIVKAQAwPhitckJKHMJwsbGOfk=",
    )
)
"""The packed columns of two samples of two parameters, as `block_to_bytes` packed them earlier."""


def test_a_block_of_a_database_is_read() -> None:
    """Today's code reads the bytes that databases hold."""
    histogram = np.zeros((2, BINS), np.int64)
    histogram[0, 20:23], histogram[1, 40] = (5, 300, 7), 9
    samples = []
    for step in (1, 2):
        lost: dict[str, npt.ArrayLike] = {"zeros": (3, 0), "inf": (0, step), "nan": (step, 0)}
        magnitudes: dict[str, npt.ArrayLike] = {"amax": (1.5, np.inf), "sum_squares": (0.1, np.nan)}
        beside = {"elements": np.array([1000, 2000]), "forward": np.array([0.1, np.inf])}
        of = counted(histogram * (step + 1), **lost, **magnitudes)
        samples.append(Sample(step, 10 * step, 2.0**step, of, beside))
    wanted = Stack.of(samples).columns

    found = packing.stack_from_bytes(BLOCK).columns
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values, strict=True)


def test_magnitudes_that_single_precision_holds_take_less() -> None:
    """They are packed in half the bytes, and any others as they are: every bit comes back."""

    def packed(*magnitudes: float) -> bytes:
        one = statistics(len(magnitudes))
        one.amax[:] = magnitudes
        block = packing.block_to_bytes(Stack.of([Sample(0, 0, 1.0, one)]))
        assert packing.stack_from_bytes(block).columns["amax"].tobytes() == one.amax.tobytes()
        return block[1]

    single = np.random.default_rng(0).uniform(0, 1e5, 100).astype(np.float32).tolist()
    assert len(packed(*single, np.inf, np.nan)) < len(packed(*single, np.inf, 0.1)) - 20
    packed(-0.0, 5e-324, 1e-40, 1e300, -np.inf, np.nan)


def test_a_bin_that_follows_from_the_other_counts_takes_no_space() -> None:
    """The fullest bin of each parameter is left out if all counts add up; either way every count comes back."""
    random = np.random.default_rng(0)
    histograms = np.zeros((8, 100, BINS), np.int64)
    histograms[..., 20:23] = random.multinomial(100_000, [0.2, 0.6, 0.2], (8, 100))
    samples = [Sample(step, step, 1.0, counted(each)) for step, each in enumerate(histograms)]
    sizes = []
    for looked in (0, 1):
        samples[0].statistics.looked[:1] += looked
        data = packing.block_to_bytes(Stack.of(samples))
        sizes.append(sum(map(len, data)))
        back = packing.stack_from_bytes(data).columns
        for name in ("looked", "histogram"):
            np.testing.assert_array_equal(back[name], Stack.of(samples).columns[name])
    assert sizes[0] < sizes[1] - len(samples) * 100


def test_totals_part_parameters_by_the_grid() -> None:
    """Parameters on and off fp16's grid are summed apart, and a NaN maximum stays NaN."""
    on, off = statistics(3, seed=1), statistics(2, seed=2, on_grid=False)
    off.amax[0] = np.nan
    rows = np.concatenate(
        [
            totals.total(Stack.of([Sample(step, step, 1.0, each)]), np.full(3, 80), None)
            for step, each in enumerate((on, off))
        ]
    )
    series = totals.series(totals.samples_from_bytes([totals.samples_to_bytes(rows)]))

    assert series.on_grid.parameters.tolist() == [3, 0]
    assert series.off_grid.parameters.tolist() == [0, 2]
    assert series.on_grid.histogram.sum(1).tolist() == [3 * 72, 0]
    assert series.on_grid.amax.tolist() == [on.amax.max(), 0.0]
    assert np.isnan(series.off_grid.amax[1])


def test_a_sample_is_small() -> None:
    """Fully measured samples of GPT-2's 148 parameters take less than 6 kB each in a block of 16."""
    random = np.random.default_rng(0)
    numel = random.choice([768, 2304, 3072, 768 * 768, 768 * 2304, 768 * 3072], 148)
    shares = np.exp(-(((np.arange(64) - random.normal(24, 3, (148, 1))) / 2.2) ** 2))
    samples = [Sample(step, step, 1.0, statistics(148, seed=step)) for step in range(16)]
    for sample in samples:
        sample.statistics.histogram[:] = random.multinomial(
            numel, shares / shares.sum(1, keepdims=True)
        )
        sample.statistics.looked[:] = numel
        sample.statistics.amax[:] = sample.statistics.amax.astype(np.float32)

    assert sum(map(len, packing.block_to_bytes(Stack.of(samples)))) / len(samples) < 6_000
