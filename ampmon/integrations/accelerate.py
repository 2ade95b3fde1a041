"""Accelerate: a tracker for `Accelerator(log_with=...)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate.tracking import GeneralTracker, on_main_process

from ampmon.client import current_run, run
from ampmon.integrations.trackers import Proposal, harmless, log_metrics, numbers
from ampmon.training.built import auto


class AmpmonTracker(GeneralTracker):
    """Records the values of `accelerator.log` at its step, and the configuration of `init_trackers`.

    ``Accelerator(log_with=AmpmonTracker("my run"))``. Create it before the model: from then on each scaler of the
    process is watched, as under `ampmon run`. ``run_id`` continues a run, whose next update is ``resume_step``. With
    ``tracker=wandb``, ampmon's values join the rows of a tracker that comes after this one in ``log_with``; see
    `trackers.log_metrics`.

    `end_training()` ends the run and may block for up to five seconds. Nothing else here raises, blocks or syncs.
    """

    name = "ampmon"
    requires_logging_directory = False
    # Every rank records, so each has to propose the run.
    main_process_only = False

    def __init__(
        self,
        run_name: str | None = None,
        *,
        run_id: str | None = None,
        resume_step: int | None = None,
        tracker: Any = None,
    ) -> None:
        super().__init__()
        self._tracker = tracker
        auto()
        self._proposal = Proposal()
        self._asked = run_name, run_id, resume_step

    @property
    def tracker(self) -> Any:
        """The current run, or None before it begins."""
        return current_run.current()

    def start(self) -> None:
        self.store_init_configuration({})

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        name, run_id, step = self._asked
        self._proposal.make(name, values, run_id, step)

    @on_main_process
    @harmless
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        run.log(numbers(values), step=step)
        if self._tracker is not None:
            log_metrics(self._tracker, step)

    def finish(self) -> None:
        self._proposal.end()
