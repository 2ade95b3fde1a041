"""What `init`, `log` and `finish` record, and that they do no harm."""

from __future__ import annotations

import builtins
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ampmon
import scripts
from ampmon import wire
from ampmon.client import current_run
from ampmon.client.iteration import taken
from ampmon.client.recorder import Recorder
from ampmon.client.troubles import ErrorReporter
from ampmon.errors import ConfigurationError
from ampmon.spool import SpoolWriter
from ampmon.training.series import Stream
from recording import recording, recordings


def step(
    scaler: torch.amp.GradScaler, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


@pytest.fixture
def model() -> torch.nn.Linear:
    return torch.nn.Linear(4, 4)


@pytest.fixture
def optimizer(model: torch.nn.Linear) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("script", ["finetune.py", "finetune/__main__.py"])
def test_init_is_optional(
    script: str, data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first scaler starts a run named after the script or package, with its owner and versions."""
    monkeypatch.setattr(sys, "argv", [f"somewhere/{script}"])
    ampmon.GradScaler("cpu")
    attempt = recording(data_directory).attempt
    assert attempt.name == "finetune"
    assert attempt.project == "default"
    assert attempt.owner
    assert attempt.versions["torch"] == torch.__version__


def test_init_says_what_the_run_is(data_directory: Path) -> None:
    """The header holds project, name, tags, config and resume step; config values that are not plain become text."""
    run_id = ampmon.init(
        "vision", "baseline", {"lr": 3e-4, "dtype": torch.float16}, tags=["a", "b"], resume_step=500
    )
    attempt = recording(data_directory).attempt
    assert str(attempt.run_id) == run_id
    assert (attempt.project, attempt.name, attempt.tags) == ("vision", "baseline", ("a", "b"))
    assert attempt.config == {"lr": 3e-4, "dtype": "torch.float16"}
    assert attempt.resume_step == 500


def test_a_second_init_ends_the_first_run(
    data_directory: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """A second `init` finishes the first run; a scaler continues in the new run and counts from 0."""
    ampmon.init(name="first")
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    step(scaler, model, optimizer)
    ampmon.init(name="second")
    step(scaler, model, optimizer)
    step(scaler, model, optimizer)
    first, second = recordings(data_directory)
    assert (first.attempt.name, len(first.updates), len(first.events("finish"))) == ("first", 1, 1)
    assert (second.attempt.name, [update.ordinal for update in second.updates]) == (
        "second",
        [0, 1],
    )


def test_bad_options_raise_at_once() -> None:
    """`init` raises a ConfigurationError for a bad option."""
    with pytest.raises(ConfigurationError, match="mode"):
        ampmon.init(mode="sometimes")


def test_scalars_belong_to_the_last_update_until_the_next_scale(
    data_directory: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Values logged after `update()` belong to that update; values logged after `scale()` belong to the next one."""
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    ampmon.log({"when": 0})
    step(scaler, model, optimizer)
    ampmon.log({"when": 0.5})
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    ampmon.log({"when": 1})
    scaler.step(optimizer)
    scaler.update()
    ampmon.log({"when": 1.5}, step=77)
    scalars = recording(data_directory).scalars
    assert [(record.ordinal, record.values["when"]) for record in scalars] == [
        (0, 0.0),
        (0, 0.5),
        (1, 1.0),
        (1, 1.5),
    ]
    assert [record.user_step for record in scalars] == [None, None, None, 77]


def test_a_baseline_has_a_tag(data_directory: Path) -> None:
    """A run started with `baseline=True` has that tag beside its own."""
    ampmon.init("vision", tags=["a"], baseline=True)
    assert recording(data_directory).attempt.tags == ("a", "baseline")


def test_without_an_enabled_scaler_each_loss_has_a_step(data_directory: Path) -> None:
    """Without an enabled scaler a repeated name starts a new step; an explicit step counts from `resume_step`."""
    ampmon.init("vision", resume_step=100)
    ampmon.GradScaler("cpu", enabled=False)
    for loss in (3.0, 2.0):
        ampmon.log({"loss": loss})
        ampmon.log({"lr": 0.1})
    ampmon.log({"loss": 1.0}, step=107)
    ampmon.log({"loss": 0.5})
    scalars = recording(data_directory).scalars
    assert [record.ordinal for record in scalars] == [0, 0, 1, 1, 7, 8]


def test_without_a_scaler_the_step_may_be_given(data_directory: Path) -> None:
    """Values that are logged with a step belong to it, if no scaler reports."""
    ampmon.init("vision")
    ampmon.log({"loss": 1.0}, step=7)
    assert [record.ordinal for record in recording(data_directory).scalars] == [7]


def test_more_values_than_a_record_holds_are_left_out(data_directory: Path) -> None:
    """A call of `log` with too many values is left out and counted, even if all names are known."""
    values = {f"value {number}": 1.0 for number in range(wire.SCALARS_MAX + 1)}
    monitor = ampmon.GradScaler("cpu").monitor
    assert monitor is not None
    ampmon.log({"value 0": values.pop("value 0")})
    ampmon.log(values)
    with pytest.warns(ampmon.AmpmonWarning, match="the limit is"):
        ampmon.log({"value 0": 1.0, **values})
    assert monitor.errors == 1
    counts = [len(record.values) for record in recording(data_directory).scalars]
    assert counts == [1, wire.SCALARS_MAX]


def test_errors_beyond_a_hundred_are_reported_in_hundreds() -> None:
    """Each of the first hundred errors is an event, and after that each hundredth, for a hundred."""
    repeats: list[int] = []

    class Reporter(ErrorReporter):
        def event(self, kind: str, **detail: Any) -> None:
            repeats.append(detail["repeat"])

    reporter = Reporter()
    with pytest.warns(ampmon.AmpmonWarning, match="here failed"):
        reporter.failed("here", ValueError())
    for _ in range(249):
        reporter.failed("here", ValueError())
    assert repeats == [1] * 100 + [100]


@pytest.mark.parametrize("name", ["loss", " loss\n", "x" * 255 + " y", ""])
@pytest.mark.parametrize("value", [0.25, math.inf, 3, True, np.float32(0.5)])
def test_a_name_is_kept_alike_each_time(data_directory: Path, name: str, value: float) -> None:
    """If a scaler reports, later values under a name are recorded like the first one."""
    ampmon.GradScaler("cpu")
    for _ in range(3):
        ampmon.log({name: value}, step=7)
    first, *others = recording(data_directory).scalars
    assert len(others) == 2
    for other in others:
        assert (other.values, other.kinds, other.user_step) == (first.values, first.kinds, 7)


def test_what_is_not_finite_is_kept_as_it_is(data_directory: Path) -> None:
    """A NaN loss, an infinity and a tensor with a graph are recorded unchanged."""
    ampmon.GradScaler("cpu")
    loss = torch.tensor(math.nan, requires_grad=True) * 1
    ampmon.log({"loss": loss, "inf": math.inf, "one": torch.ones(1, 1), "int": 3, "bool": True})
    values = recording(data_directory).scalars[0].values
    assert math.isnan(values["loss"])
    assert (values["inf"], values["one"], values["int"], values["bool"]) == (
        math.inf,
        1.0,
        3.0,
        1.0,
    )


def test_what_is_not_a_number_is_counted_and_warned_of(data_directory: Path) -> None:
    """`log` never raises: text, a matrix and a non-mapping count as monitor errors, with one warning."""
    scaler = ampmon.GradScaler("cpu")
    with pytest.warns(ampmon.AmpmonWarning, match=r"ampmon\.log"):
        ampmon.log({"loss": "low"})
    ampmon.log({"loss": torch.ones(2, 2)})
    ampmon.log(3)  # type: ignore[arg-type]
    assert scaler.monitor.errors == 3
    assert len(recording(data_directory).events("error")) == 3


@pytest.mark.parametrize("bad", [None, "low", torch.ones(2), torch.ones((), device="meta")])
def test_one_value_that_is_no_number_costs_no_other(data_directory: Path, bad: object) -> None:
    """Invalid values in one call count as one error that names the first; the numbers beside them are kept."""
    scaler = ampmon.GradScaler("cpu")
    with pytest.warns(ampmon.AmpmonWarning, match="'val_loss' is not recorded: "):
        ampmon.log({"loss": 1.0, "val_loss": bad, "accuracy": bad, "lr": 0.1}, step=7)
    assert scaler.monitor.errors == 1
    (scalars,) = recording(data_directory).scalars
    assert (scalars.values, scalars.user_step) == ({"loss": 1.0, "lr": 0.1}, 7)


def test_names_beyond_those_that_are_kept_are_left_out(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names beyond the limit are left out, counted and warned of once; the values beside them are kept."""
    monkeypatch.setattr("ampmon.wire.SCALAR_NAMES_MAX", 3)
    scaler = ampmon.GradScaler("cpu")

    def made_anew_with_each_step() -> None:
        for step in range(4):
            ampmon.log({"loss": float(step), f"batch {step}": 1.0})

    with pytest.warns(
        ampmon.AmpmonWarning, match="'batch 2' is not recorded: the run already has 3 names"
    ) as warned:
        made_anew_with_each_step()
    ampmon.log({"batch 1": torch.ones(()), "batch 5": torch.ones(())})
    ampmon.log({"batch 6": 1.0})
    ampmon.finish()
    assert len(warned) == 1
    assert scaler.monitor.errors == 4
    assert [each.values for each in recording(data_directory).scalars] == [
        {"loss": 0.0, "batch 0": 1.0},
        {"loss": 1.0, "batch 1": 1.0},
        {"loss": 2.0},
        {"loss": 3.0},
        {"batch 1": 1.0},
    ]


def test_a_config_that_is_too_large_is_cut(data_directory: Path) -> None:
    """A config that is too large keeps the entries that fit; the others are named in it and in a warning."""
    config = {"lr": 0.1, "vocabulary": "x" * 2**20, "ids": list(range(100_000)), "depth": 12}
    with pytest.warns(ampmon.AmpmonWarning, match="'vocabulary' and 1 more: too large"):
        ampmon.init(config=config)
    kept = {"lr": 0.1, "depth": 12, "[left out]": "'vocabulary' and 1 more: too large"}
    assert recording(data_directory).attempt.config == kept


def test_scalers_beyond_those_that_are_recorded_train_on(
    data_directory: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scaler beyond the limit of headers trains without records, with a warning and a counted error."""
    monkeypatch.setattr("ampmon.wire.HEADERS_MAX", 2)
    ampmon.GradScaler("cpu")
    with pytest.warns(ampmon.AmpmonWarning, match="1 are recorded already"):
        beyond = ampmon.GradScaler("cpu")
    step(beyond, model, optimizer)
    assert (beyond.monitor.errors, beyond.monitor.updates) == (1, 0)
    recorded = recording(data_directory).messages
    assert [each.stream for each in recorded if isinstance(each, wire.StreamHeader)] == ["scaler"]


def test_finish_ends_the_run_and_may_be_called_twice(
    data_directory: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """`finish` may be called twice; its event is the last record, and later updates are not recorded."""
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    step(scaler, model, optimizer)
    ampmon.finish()
    ampmon.finish()
    step(scaler, model, optimizer)
    recorded = recording(data_directory)
    assert len(recorded.updates) == 1
    assert recorded.messages[-1] == recorded.events("finish")[0]


# No write counts as slow, however busy the machine is, so records go straight to disk.
SCRIPT = """
import sys, torch, ampmon
import ampmon.spool.writer
ampmon.spool.writer.SLOW_S = float("inf")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = ampmon.GradScaler("cpu", init_scale=2.0)
def update():
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
for _ in range(3):
    update()
{end}
"""


@pytest.mark.parametrize(
    ("end", "status", "last"),
    [
        ("", 0, ("finish", {})),
        ("1 / 0", 1, ("exception", {"type": "ZeroDivisionError"})),
        ("sys.exit()", 0, ("finish", {})),
        ("sys.exit(3)", 3, ("exception", {"type": "SystemExit(3)"})),
        ("sys.exit(torch.ones(2))", 1, ("exception", {"type": "SystemExit(1)"})),
        ("sys.exit(True)", 1, ("exception", {"type": "SystemExit(1)"})),
        ("sys.ps1, sys.last_value = '>', ValueError()", 0, ("finish", {})),  # as in a notebook
        ("exit(2)", 2, ("exception", {"type": "SystemExit(2)"})),
        (
            "try: 1 / 0\nexcept ArithmeticError: sys.exit(1)",  # as Hydra ends
            1,
            ("exception", {"type": "ZeroDivisionError"}),
        ),
        (
            "import threading\nended = threading.Thread(target=sys.exit, args=(1,))\nended.start()\nended.join()",
            0,
            ("finish", {}),
        ),
    ],
)
def test_a_script_that_ends_says_how(
    data_directory: Path, end: str, status: int, last: tuple[str, dict[str, str]]
) -> None:
    """The exit of a script finishes its run. An uncaught exception or an exit code records its type instead."""
    ended = scripts.run("-c", SCRIPT.format(end=end), check=False)
    assert ended.returncode == status
    recorded = recording(data_directory)
    assert len(recorded.updates) == 3
    assert (recorded.messages[-1].kind, recorded.messages[-1].detail) == last


@pytest.mark.parametrize(("then", "kind"), [("update()", "finish"), ("pass", "exception")])
def test_an_exit_that_the_script_catches(data_directory: Path, then: str, kind: str) -> None:
    """A run whose script caught `sys.exit(1)` finishes if it recorded an update after that, and else has crashed."""
    scripts.run("-c", SCRIPT.format(end=f"try: sys.exit(1)\nexcept SystemExit: {then}"))
    last = recording(data_directory).messages[-1]
    assert isinstance(last, wire.Event)
    assert last.kind == kind


def test_a_run_ends_without_the_exit_of_an_earlier_one(data_directory: Path) -> None:
    """A caught `sys.exit(1)` does not end a later run, though that records as many updates."""
    again = "ampmon.init()\nscaler = ampmon.GradScaler('cpu')\nfor _ in range(3): update()"
    scripts.run("-c", SCRIPT.format(end=f"try: sys.exit(1)\nexcept SystemExit: {again}"))
    ends = [one.messages[-1] for one in recordings(data_directory)]
    assert [end.kind for end in ends if isinstance(end, wire.Event)] == ["finish", "finish"]


def test_exits_are_noted_once_however_many_runs_begin() -> None:
    """The second run of a process does not wrap `sys.exit` again, so thousands of runs do not exhaust the stack."""
    ampmon.init()
    first = sys.exit
    ampmon.init()
    assert sys.exit is first


def test_a_script_killed_in_mid_step_leaves_every_update(data_directory: Path) -> None:
    """After `kill -9` all updates that returned are on disk, without a finish event."""
    end = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    ended = scripts.run("-c", SCRIPT.format(end=end), check=False)
    assert ended.returncode == -9
    recorded = recording(data_directory)
    assert [update.ordinal for update in recorded.updates] == [0, 1, 2]
    assert recorded.events("finish") == []


def test_monitor_shows_what_it_saw(
    model: torch.nn.Linear, optimizer: torch.optim.Optimizer
) -> None:
    """`scaler.monitor` counts updates and skips, names the culprits of the last skip and gives the overhead."""
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, model=model)
    step(scaler, model, optimizer)
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    model.bias.grad[0] = math.nan
    scaler.step(optimizer)
    scaler.update()
    monitor = scaler.monitor
    assert (monitor.updates, monitor.skips, monitor.last_skip) == (2, 1, ("bias",))
    assert (monitor.dropped, monitor.errors) == (0, 0)
    assert 0 < monitor.overhead < 1
    assert monitor.run_id in repr(monitor)
    assert "2 updates, 1 skips" in repr(monitor)


def test_an_optimizer_made_anew_for_each_step_is_not_kept(
    data_directory: Path, model: torch.nn.Linear
) -> None:
    """However many optimizers take a step, each is recorded by name, and a bounded number of names is cached."""
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    for _ in range(300):
        step(scaler, model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert taken.cache_info().currsize <= 256
    steps = [update.optimizers[0].optimizer for update in recording(data_directory).updates]
    assert steps == ["SGD", *(f"SGD-{number}" for number in range(2, 301))]


def test_init_can_disable_monitoring(data_directory: Path) -> None:
    """After `init(mode="disabled")` scalers and `log` record nothing until the next `init`."""
    ampmon.init(mode="disabled")
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    ampmon.log({"loss": 1.0})
    assert scaler.monitor is None
    assert not data_directory.exists()
    ampmon.init(name="again")
    assert recording(data_directory).attempt.name == "again"


def test_log_alone_loads_no_torch(data_directory: Path) -> None:
    """A program without torch may log values."""
    program = "import sys, ampmon; ampmon.log({'loss': 1.0}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert [record.values for record in recording(data_directory).scalars] == [{"loss": 1.0}]


def test_log_begins_no_run_after_the_last_was_finished(data_directory: Path) -> None:
    """`log` after `finish` starts no run; a new scaler does."""
    ampmon.init(name="first")
    ampmon.finish()
    ampmon.finish()
    ampmon.log({"loss": 1.0})
    assert len(recordings(data_directory)) == 1
    ampmon.GradScaler("cpu")
    assert len(recordings(data_directory)) == 2


def test_ranks_of_a_launcher_begin_another_run_with_another_init(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under torchrun two `init` calls of a process make two runs, with the same ids after a restart."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    script = "import ampmon; print(ampmon.init(), ampmon.init())"
    ids = [scripts.run("-c", script).stdout.split() for _ in range(2)]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 2


@pytest.mark.parametrize("options", [{"project": "another"}, {"name": "another"}])
def test_a_launch_of_another_project_or_name_is_another_run(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """With a reused torchrun id, another project or name is another run."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "100")
    script = f"import ampmon; print(ampmon.init(), ampmon.init(**{options}))"
    first = scripts.run("-c", script).stdout.split()
    script = f"import ampmon; print(ampmon.init(**{options}), ampmon.init())"
    again = scripts.run("-c", script).stdout.split()
    assert not set(first) & set(again)


@pytest.mark.parametrize("step", [-1, 2**53, 1.5, math.inf, "seven", torch.ones((), device="meta")])
def test_a_step_that_cannot_be_is_counted(data_directory: Path, step: object) -> None:
    """An invalid `log(step=)` counts as a monitor error; the values are kept without a step."""
    scaler = ampmon.GradScaler("cpu")
    with pytest.warns(ampmon.AmpmonWarning, match="the step is ignored"):
        ampmon.log({"loss": 1.0}, step=step)  # type: ignore[arg-type]
    assert scaler.monitor.errors == 1
    (scalars,) = recording(data_directory).scalars
    assert (scalars.values, scalars.user_step) == ({"loss": 1.0}, None)


def test_a_step_may_be_a_whole_float(data_directory: Path) -> None:
    """A step that is a whole float becomes the equal integer."""
    ampmon.GradScaler("cpu")
    for step in (3.0, np.float64(4)):
        ampmon.log({"loss": 1.0}, step=step)  # type: ignore[arg-type]
    assert [one.user_step for one in recording(data_directory).scalars] == [3, 4]


def at_once(work: Callable[[], object]) -> None:
    """Run `work` in eight threads at the same time."""
    start = threading.Barrier(8)

    def run() -> None:
        start.wait()
        work()

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_scalers_made_in_several_threads_at_once_share_a_run(data_directory: Path) -> None:
    """Scalers made in several threads at once share one run with a stream for each, and the run is finished."""
    at_once(lambda: ampmon.GradScaler("cpu"))
    recorded = recording(data_directory)
    headers = [header for header in recorded.messages if isinstance(header, wire.StreamHeader)]
    names = {header.stream for header in headers}
    assert names == {"scaler", *(f"scaler-{number}" for number in range(2, 9))}
    assert len(recorded.events("finish")) == 1


def test_runs_begun_in_several_threads_at_once_all_end(data_directory: Path) -> None:
    """Every run that is started in one of several threads at once is finished."""
    at_once(ampmon.init)
    recorded = recordings(data_directory)
    assert [len(one.events("finish")) for one in recorded] == [1] * 8


def test_series_named_in_several_threads_at_once_have_names_of_their_own() -> None:
    """Streams of a run that are made in several threads at once have distinct names."""
    ampmon.init()
    run, streams, interval = current_run.current(), list[Stream](), sys.getswitchinterval()
    assert run is not None
    sys.setswitchinterval(1e-6)
    try:
        at_once(lambda: streams.extend(run.stream("same") for _ in range(100)))
    finally:
        sys.setswitchinterval(interval)
    assert len({stream.name for stream in streams}) == 800


# This timer counts processor time, so signals come as often on a busy machine.
SIGNALLED = """
import signal, torch, ampmon
handled = 0
def handle(*_):
    global handled
    handled += 1
    ampmon.log({"signal": 1.0})
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = ampmon.GradScaler("cpu", init_scale=2.0)
ampmon.log({"before": 1.0})
signal.signal(signal.SIGPROF, handle)
signal.setitimer(signal.ITIMER_PROF, 0.0005, 0.0005)
while scaler.monitor.updates < 500 or handled < 50:
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
signal.setitimer(signal.ITIMER_PROF, 0)
"""


def test_a_signal_handler_that_logs_while_a_run_is_begun_begins_no_other(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler that logs during `init` begins no run of its own."""

    def interrupted(*given: Any) -> Recorder:
        signal.raise_signal(signal.SIGUSR1)
        return Recorder(*given)

    monkeypatch.setattr(current_run, "_over", False)
    monkeypatch.setattr(current_run, "Recorder", interrupted)
    before = signal.signal(signal.SIGUSR1, lambda *_: ampmon.log({"signal": 1.0}))
    try:
        ampmon.init(name="mine")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [each.attempt.name for each in recordings(data_directory)] == ["mine"]


def test_log_begins_the_first_run(data_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`log` begins a run if the process had none before."""
    monkeypatch.setattr(current_run, "_over", False)
    ampmon.log({"loss": 1.0})
    assert [each.values for each in recording(data_directory).scalars] == [{"loss": 1.0}]


def test_finish_waits_no_longer_than_its_deadline_for_a_run_that_cannot_begin() -> None:
    """While another thread begins a run on a disk that hangs, `finish` returns at its deadline."""
    held, over = threading.Event(), threading.Event()

    def hang() -> None:
        with current_run._lock:
            held.set()
            over.wait()

    thread = threading.Thread(target=hang)
    thread.start()
    held.wait()
    try:
        current_run.finish(deadline_s=0.01)
    finally:
        over.set()
        thread.join()


def test_a_run_begins_where_python_has_no_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run begins under `python -S` and in frozen programs, which have no `exit`."""
    monkeypatch.delattr(builtins, "exit")
    monkeypatch.setattr(sys, "exit", sys.exit)
    monkeypatch.setattr(current_run, "_left", None)
    assert ampmon.init() is not None


def test_a_value_logged_in_mid_write_is_recorded(
    data_directory: Path,
    model: torch.nn.Linear,
    optimizer: torch.optim.Optimizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a signal handler logs while the training writes a record comes after that record."""
    step(ampmon.GradScaler("cpu", init_scale=2.0), model, optimizer)
    ampmon.log({"loss": 1.0})
    before = signal.signal(signal.SIGUSR1, lambda *_: ampmon.log({"loss": 3.0}))
    append = SpoolWriter.append

    def interrupted(spool: SpoolWriter, payload: bytes, **more: str) -> bool:
        patch.undo()
        signal.raise_signal(signal.SIGUSR1)
        return append(spool, payload, **more)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(SpoolWriter, "append", interrupted)
            ampmon.log({"loss": 2.0})
    finally:
        signal.signal(signal.SIGUSR1, before)
    values = [record.values["loss"] for record in recording(data_directory).scalars]
    assert values == [1.0, 2.0, 3.0]


def test_a_signal_handler_may_log(data_directory: Path) -> None:
    """A signal handler that logs during a write neither hangs the process nor tears or loses a record."""
    scripts.run("-c", SIGNALLED)
    recorded = recording(data_directory)
    assert [update.ordinal for update in recorded.updates] == list(range(len(recorded.updates)))
    assert len(recorded.updates) >= 500
    assert len(recorded.scalars) > 50
    seqs = sorted(
        record.seq
        for record in recorded.messages
        if getattr(record, "stream", None) == "scaler" and hasattr(record, "seq")
    )
    assert seqs == list(range(len(seqs)))
    assert recorded.events("error") == []
