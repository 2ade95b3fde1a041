"""Lightning: a `Callback` for `Trainer`, and a `Logger` for `Trainer` and `Fabric`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ampmon.client import run
from ampmon.integrations.trackers import Proposal, harmless, log_metrics, numbers, run_id
from ampmon.training.built import auto


try:
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.loggers.logger import Logger
except ModuleNotFoundError:  # the same code, in a package of its own
    from pytorch_lightning.callbacks import Callback
    from pytorch_lightning.loggers.logger import Logger


class AmpmonLogger(Logger):
    """Records the values of `self.log` and `fabric.log` at the framework's step.

    ``Trainer(logger=AmpmonLogger("my run"))``, ``Fabric(loggers=AmpmonLogger("my run"))``. Create it before model and
    scaler: from then on each scaler of the process is watched, as under `ampmon run`. The end of `Trainer.fit` may
    block for up to five seconds, to deliver the run. Nothing else here raises, blocks or syncs.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        auto()
        self._name = name
        self._proposal = Proposal()
        self._proposal.make(name)

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def version(self) -> str | None:
        return run_id()

    @harmless
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        values = params if isinstance(params, Mapping) else getattr(params, "__dict__", {})
        self._proposal.make(self._name, dict(values))

    @harmless
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        run.log(numbers(metrics), step=step)

    @harmless
    def finalize(self, status: str) -> None:
        # Lightning calls this while it handles the exception.
        fatal = sys.exc_info()[0]
        self._proposal.end(fatal.__name__ if status == "failed" and fatal else "finished")


class AmpmonCallback(Callback):
    """Watches a Trainer's scaler, and records the values of `self.log` every `log_every_n_steps`.

    ``Trainer(callbacks=[AmpmonCallback("my run")])``. A training resumed with `ckpt_path` continues its run. If there
    is an `AmpmonLogger` too, only that records the logged values. With ``tracker=wandb_logger.experiment``, ampmon's
    values join the rows that the Trainer logs there; see `trackers.log_metrics`. The end of `fit` ends the run and may
    block for up to five seconds, to deliver it. Nothing else here raises, blocks or syncs.
    """

    def __init__(self, name: str | None = None, *, tracker: Any = None) -> None:
        self._name, self._tracker = name, tracker
        self._proposal = Proposal()
        self._continued: str | None = None
        self._run_id: str | None = None

    @harmless
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        step = trainer.global_step if self._continued else None
        self._proposal.make(self._name, dict(pl_module.hparams), self._continued, step)
        self._continued = self._run_id = None
        self._proposal.watch(getattr(trainer.precision_plugin, "scaler", None), pl_module)

    @harmless
    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        self._run_id = self._run_id or run_id()
        step = trainer.global_step
        if step % max(trainer.log_every_n_steps, 1) == 0:
            groups = [group for each in trainer.optimizers for group in each.param_groups]
            rates = [group["lr"] for group in groups if "lr" in group]
            self._log(trainer, {"lr": rates[0]} if rates else {})
            if self._tracker is not None and trainer.is_global_zero:
                log_metrics(self._tracker, step)

    @harmless
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._log(trainer, {})

    def _log(self, trainer: Any, more: dict[str, Any]) -> None:
        logged = any(isinstance(each, AmpmonLogger) for each in trainer.loggers)
        values = more if logged else {**trainer.callback_metrics, **more}
        if values and trainer.is_global_zero:
            run.log(numbers(values), step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self._run_id}  # a checkpoint may be saved after the end of `fit`

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._continued = state_dict.get("run_id")

    @harmless
    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._proposal.end()

    @harmless
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._proposal.end(type(exception).__name__)
