"""What `ampmon.integrations` adds: names, logged values, resumes. These scripts run without `ampmon run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ampmon_server.analysis.diagnosis.rules import scheduler_ahead
from ampmon_server.analysis.policy.languages import in_settings_of
from ampmon_server.model.scale_policy import ScalePolicy
from campaigns import frameworks
from campaigns.frameworks import HERE
from recording import Recording, recordings


def train(folder: Path, script: str, *words: str, shim: str) -> None:
    assert "Error" not in frameworks.use(folder, script, *words, shim=shim).stderr


def of(folder: Path) -> list[Recording]:
    found = recordings(folder / "ampmon")
    assert [each.events("error") for each in found] == [[]] * len(found)
    return found


def logged(recorded: Recording, name: str) -> list[tuple[int | None, float]]:
    """The values logged under a name, each with the user's step."""
    return [(each.user_step, each.values[name]) for each in recorded.scalars if name in each.values]


def test_a_trainer_tells_what_it_logs_and_goes_on_in_its_run(tmp_path: Path) -> None:
    """Loss, learning rate, gradient norm and epoch arrive at the Trainer's steps; a resume continues the run."""
    for more in ((), ("resume",)):
        train(tmp_path, "use_trainer.py", *more, shim="accelerate")
    first, second = of(tmp_path)
    assert first.attempt.name == second.attempt.name == "named by run_name"
    assert first.attempt.config["max_steps"] == 12
    assert first.attempt.run_id == second.attempt.run_id
    assert (first.attempt.resume_step, second.attempt.resume_step) == (None, 6)
    assert [len(first.updates), len(second.updates)] == [6, 6]
    for name in ("loss", "learning_rate", "grad_norm", "epoch"):
        assert [step for step, _ in logged(first, name)][:3] == [2, 4, 6]
        assert [step for step, _ in logged(second, name)][:3] == [8, 10, 12]
    assert [each.name for each in first.header().parameters] == ["head.weight", "head.bias"]
    assert first.header().scaler.endswith("(transformers.Trainer)")
    assert first.updates[0].scale == 1024
    assert first.events("finish")


@pytest.mark.parametrize("script", ["use_trainer.py", "use_lightning.py"])
def test_a_training_after_one_that_raised_is_a_run_of_its_own(tmp_path: Path, script: str) -> None:
    """In a process that goes on after an exception, a run ends with it, and the next training begins another."""
    shim = "lightning" if "lightning" in script else "accelerate"
    train(tmp_path, script, "again", shim=shim)
    *raised, last = of(tmp_path)
    assert len({each.attempt.run_id for each in raised} | {last.attempt.run_id}) == len(raised) + 1
    assert all(each.events("exception") and not each.events("finish") for each in raised)
    assert raised
    assert (len(last.updates), len(last.events("finish"))) == (6, 1)


def test_a_retry_with_a_smaller_batch_continues_the_run(tmp_path: Path) -> None:
    """With `auto_find_batch_size`, one run has the updates of all tries, and an event for each retry."""
    train(tmp_path, "use_trainer.py", "find", shim="accelerate")
    (recorded,) = of(tmp_path)
    assert len(recorded.events("retry")) == 1
    assert recorded.events("retry")[0].detail["batch_size"] < 4
    assert len(recorded.updates) > 6
    assert (recorded.events("exception"), len(recorded.events("finish"))) == ([], 1)


def test_a_second_callback_records_nothing(tmp_path: Path) -> None:
    """A Trainer with two callbacks makes one run, in which each value is logged once."""
    train(tmp_path, "use_trainer.py", "double", shim="accelerate")
    (recorded,) = of(tmp_path)
    assert len(recorded.updates) == 6
    assert [step for step, _ in logged(recorded, "loss")] == [2, 4, 6]


def test_a_training_within_another_is_part_of_its_run(tmp_path: Path) -> None:
    """The outer training goes on in its run, which also has the updates of the inner one, and ends as finished."""
    train(tmp_path, "use_trainer.py", "nested", shim="accelerate")
    (recorded,) = of(tmp_path)
    assert [len(recorded.of(name)) for name in ("scaler", "scaler-2")] == [6, 6]
    assert (recorded.events("exception"), len(recorded.events("finish"))) == ([], 1)


def test_a_second_training_of_a_trainer_is_a_whole_run(tmp_path: Path) -> None:
    """`trainer.train()` again records each update from the first on, not only those after the first logged values."""
    train(tmp_path, "use_trainer.py", "twice", shim="accelerate")
    assert [len(each.updates) for each in of(tmp_path)] == [6, 6]


def test_accelerate_s_log_arrives_and_its_skips_agree(tmp_path: Path) -> None:
    """`accelerator.log` is recorded at its step, and skipped updates match `step_was_skipped`."""
    train(tmp_path, "use_accelerate.py", shim="accelerate")
    (recorded,) = of(tmp_path)
    assert (recorded.attempt.name, recorded.attempt.config) == ("named by the tracker", {"lr": 0.1})
    assert [step for step, _ in logged(recorded, "loss")] == list(range(20))
    skipped = [update.optimizers[0].skipped for update in recorded.updates]
    assert skipped == json.loads((tmp_path / "skipped.json").read_text())
    assert 0 < sum(skipped) < 20
    assert recorded.updates[0].scale == 2.0**30
    assert [each.name for each in recorded.header().parameters] == ["weight", "bias"]


def test_a_lightning_callback_records_and_goes_on_in_its_run(tmp_path: Path) -> None:
    """`self.log` and the learning rate arrive every `log_every_n_steps`; `ckpt_path` continues the run."""
    for how in ("callback", "resume"):
        train(tmp_path, "use_lightning.py", how, shim="lightning")
    first, second = of(tmp_path)
    assert first.attempt.name == second.attempt.name == "of the callback"
    assert first.attempt.config == {"width": 4}
    assert first.attempt.run_id == second.attempt.run_id
    assert (first.attempt.resume_step, second.attempt.resume_step) == (None, 6)
    assert [len(first.updates), len(second.updates)] == [6, 6]
    assert [step for step, _ in logged(first, "train_loss")] == [2, 4, 6]
    assert logged(second, "lr") == [(8, 0.125), (10, 0.125), (12, 0.125)]
    assert [each.name for each in first.header().parameters] == ["head.weight", "head.bias"]


def test_a_lightning_logger_records_with_a_scaler_of_its_own(tmp_path: Path) -> None:
    """`Trainer(logger=...)` records `self.log` and the hyperparameters, and the scaler given to the plugin."""
    train(tmp_path, "use_lightning.py", "logger", shim="lightning")
    (recorded,) = of(tmp_path)
    assert (recorded.attempt.name, recorded.attempt.config) == ("of the logger", {"width": 4})
    assert len(logged(recorded, "train_loss")) == 3
    assert (len(recorded.updates), recorded.updates[0].scale) == (6, 1024)


def test_fabric_s_log_arrives(tmp_path: Path) -> None:
    """`fabric.log` arrives at its step through `Fabric(loggers=...)`."""
    train(tmp_path, "use_lightning.py", "fabric", shim="lightning")
    (recorded,) = of(tmp_path)
    assert recorded.attempt.name == "of fabric"
    assert [step for step, _ in logged(recorded, "loss")] == list(range(6))
    assert len(recorded.updates) == 6


def test_a_schedule_of_lightning_waits_with_the_fix_of_its_finding(tmp_path: Path) -> None:
    """Lightning#5558 and #21339: after two skips the schedule is two steps ahead; with the finding's fix it is not."""
    policy = ScalePolicy(scaler_type="torch.amp.grad_scaler.GradScaler (lightning.Trainer)")
    (tmp_path / "fix.py").write_text(in_settings_of(policy, scheduler_ahead.FIX))
    for words, halvings in (((), 8), (("fix",), 6)):
        folder = tmp_path / str(halvings)
        script = str(HERE / "use_lightning_schedule.py")
        rates, (steps,) = frameworks.train(
            folder, script, str(folder), *words, shim="lightning", watched=True
        )
        assert steps == 6
        assert rates["lr"] == 0.125 * 0.5**halvings
