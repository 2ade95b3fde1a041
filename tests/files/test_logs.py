"""`ampmon doctor --log` finds a run's fault from its text log alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from ampmon_server.analysis.diagnosis.diagnose import diagnose
from ampmon_server.exchange.logs import CannotImport, read_log
from ampmon_server.exchange.reconstructing import reconstruct
from ampmon_server.exchange.sending import log_batches
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.store import Store
from files.train_logs import EACH, HEALTHY, KNOWN, always, deepspeed, megatron
from typed import typed


BAR = 9
"""At least this many of the ten logs with a known fault must be diagnosed correctly."""


@pytest.fixture
def store(held: tuple[Path, Store]) -> Store:
    return held[1]


def stored(store: Store, file: Path, lines: Iterator[str] | Sequence[str]) -> UUID:
    """Write a log, import it, and return the run's id."""
    file.write_text("\n".join(lines) + "\n")
    (run_id,) = {
        (batch.run_id, store.ingest(batch))[0]
        for batch in log_batches(read_log(file), file.stem, "logs")
    }
    return run_id


def rules(store: Store, run_id: UUID) -> list[tuple[str, str]]:
    found = diagnose(store.case(run_id), Thresholds())
    assert not found.failed
    return [(each.rule, each.severity) for each in found.findings]


def test_nine_of_ten_known_faults_are_named(store: Store, tmp_path: Path) -> None:
    """The verdicts on at least nine of ten logs name their training's known fault."""
    verdicts = {
        name: rules(store, stored(store, tmp_path / "train.log", lines))[:1]
        for name, (lines, _) in KNOWN.items()
    }
    wrong = [name for name, found in verdicts.items() if not {found[0][0]} & KNOWN[name][1]]

    assert len(KNOWN) == 10
    assert len(wrong) <= 10 - BAR, verdicts


def test_healthy_logs_have_no_fault(store: Store, tmp_path: Path) -> None:
    """Logs of healthy trainings yield no finding above a notice."""
    for name, lines in HEALTHY.items():
        found = rules(store, stored(store, tmp_path / "train.log", lines))
        assert {severity for _, severity in found} <= {"notice"}, name


def test_counts_are_those_of_the_log(store: Store, tmp_path: Path) -> None:
    """An imported log has as many updates and skips as DeepSpeed and Megatron-LM counted."""
    lines = list(deepspeed(900, always(2.0**12), window=20, power=12, hysteresis=1))
    summary, _ = store.run(stored(store, tmp_path / "deepspeed.log", lines))
    assert (summary.updates, summary.skipped) == (900, sum("OVERFLOW" in line for line in lines))

    lines = list(megatron(1000, always(2.0**20)))
    counts = [line.split("iterations: ")[1].split("|")[0] for line in lines if "skipped" in line]
    summary, _ = store.run(stored(store, tmp_path / "megatron.log", lines))
    assert (summary.updates, summary.skipped) == (1000, sum(map(int, counts)))
    assert summary.scale == 2.0**20
    assert summary.status == "finished"


def test_a_log_that_ends_between_two_steps_adds_no_interval(tmp_path: Path) -> None:
    """A skip after the last step that the log names comes at most as many updates later as two such lines lie apart."""
    lines = list(deepspeed(900, always(2.0**12), window=20, power=12, hysteresis=1))
    ends = max(at for at, line in enumerate(lines) if "OVERFLOW" in line)
    file = tmp_path / "train.log"
    file.write_text("\n".join(line for line in lines[: ends + 1] if "scale_args" not in line))
    log = read_log(file)
    rows, interval = reconstruct(log.marks, log.rules)
    last = max(mark.step for mark in log.marks if mark.step is not None)
    assert last < len(rows) <= last + 1 + EACH
    assert interval in {20, 21}


def test_what_tells_of_no_scale_is_refused(tmp_path: Path) -> None:
    """A log without a loss scale, and one of bf16, are rejected with a reason."""
    file = tmp_path / "train.log"
    file.write_text("epoch 1 loss 0.5\n")
    with pytest.raises(CannotImport, match="no line reports a loss scale"):
        read_log(file)
    file.write_text("step 1 loss scale: 1.0\nstep 2 loss scale: 1.0\n")
    with pytest.raises(CannotImport, match="bf16"):
        read_log(file)


@pytest.mark.parametrize("start", [b"SQLite format 3\0", b"<!DOCTYPE html>\n"])
def test_a_database_and_a_report_are_no_logs(tmp_path: Path, start: bytes) -> None:
    """A binary file and an HTML page are rejected, even if they contain lines of a log."""
    file = tmp_path / "train.log"
    file.write_bytes(start + b"\nstep 1 loss scale: 65536.0\nstep 2 loss scale: 32768.0\n")
    with pytest.raises(CannotImport, match="is not a text log"):
        read_log(file)


def test_a_script_is_no_log(tmp_path: Path) -> None:
    """A Python file is rejected, although its settings look like printed scales."""
    script = tmp_path / "train.py"
    script.write_text("scaler = GradScaler(init_scale=65536.0)\nloss_scale = 1024.0\n")
    with pytest.raises(CannotImport, match="is not a text log"):
        read_log(script)


@pytest.mark.parametrize("odd", ["-4.0", "1e-310", "9e-46"])
def test_a_printed_scale_may_be_anything(store: Store, tmp_path: Path, odd: str) -> None:
    """A log with a negative or a tiny scale, or a date beyond what a record holds, is imported."""
    lines = [f"step 1 scale {odd}", "9999-12-31 00:00:00 step 9 scale 65536.0", "step 12 scale 4.0"]
    assert store.run(stored(store, tmp_path / "train.log", lines))[0].updates == 12


@pytest.mark.parametrize("odd", ["nan", "inf", "1e300"])
def test_a_scale_that_fp32_cannot_hold_says_nothing(tmp_path: Path, odd: str) -> None:
    """A printed scale that is no fp32 number, an impossible date or setting are passed over."""
    file = tmp_path / "train.log"
    file.write_text(
        f"loss_scale_window=1e400\n2024-13-45 25:99:99 step 1 scale 65536.0\n"
        f"step 2 scale {odd}\n0001-01-01 00:00:00 step 3 scale 32768.0\n"
    )
    log = read_log(file)
    rows, _ = reconstruct(log.marks, log.rules)
    assert [(row.scale, row.after, row.time) for row in rows] == [
        (65536.0, 65536.0, None),
        (65536.0, 65536.0, None),
        (65536.0, 32768.0, None),
    ]


@pytest.mark.parametrize(
    ("framework", "line"),
    [
        ("deepspeed", f"step={'9' * 5000}, skipped=0, lr=["),
        ("prints", f"iteration {'9' * 5000} scale 4.0"),
        ("megatron", "iteration 1/1 |" * 10**5),
    ],
)
def test_no_line_is_too_long(tmp_path: Path, framework: str, line: str) -> None:
    """Numbers and lines without end, as in a damaged log, are read in seconds, or rejected as any other."""
    file = tmp_path / "train.log"
    file.write_text(line)
    began = time.monotonic()
    with suppress(CannotImport):
        read_log(file, framework)
    assert time.monotonic() - began < 30


def test_an_interval_that_a_log_does_not_show_is_in_no_fix(tmp_path: Path) -> None:
    """Lines that are far apart do not show the growth interval. Code to change keeps the script's own."""
    file = tmp_path / "train.log"
    lines = [f"step {100 * n} loss 1 loss_scale={2.0 ** (17 - n)}\n" for n in range(1, 5)]
    file.write_text("".join(lines))

    assert "GradScaler(), model=model" in typed("doctor", "--log", file).out


def test_the_doctor_reads_a_log(tmp_path: Path) -> None:
    """The command prints findings with the framework's own settings and exits with the verdict's code."""
    file = tmp_path / "train.log"
    file.write_text("\n".join(deepspeed(900, always(2.0**12), window=20, power=12, hysteresis=1)))

    printed = typed("doctor", "--log", file)
    assert printed.code == 20
    assert '"loss_scale_window": 2000' in printed.out
    assert f"after`ampmonimport{file}`" in "".join(printed.out.split())  # the path may be broken
    assert "read as a log of deepspeed" in printed.err
    code, out, _ = typed("doctor", "--log", file, "--json")
    assert (code, json.loads(out)["findings"][0]["rule"]) == (20, "sawtooth")
    one = tmp_path / "one.log"
    one.write_text("step 100 loss_scale=65536.0\n")
    assert "read as a log of prints, 1 line with the scale;" in typed("doctor", "--log", one).err
    none = tmp_path / "none.log"
    missing = typed("doctor", "--log", none)
    assert missing == (2, "", f"ampmon doctor: {none}: No such file or directory\n")
    assert typed("doctor", "--log", file, "--log-of", "megatron").code == 2
