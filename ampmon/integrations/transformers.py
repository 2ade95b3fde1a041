"""A `TrainerCallback` for Hugging Face's `Trainer` and its subclasses, such as TRL's trainers."""

from __future__ import annotations

import sys
from traceback import walk_stack
from typing import Any

from transformers import TrainerCallback

from ampmon.client import current_run, run
from ampmon.client.troubles import warn
from ampmon.integrations.trackers import Proposal, harmless, log_metrics, numbers, run_id


class AmpmonCallback(TrainerCallback):
    """Records what the Trainer logs, at its own step, and names the run by `run_name`.

    ``Trainer(..., callbacks=[AmpmonCallback()])``. It watches the Trainer's scaler, with and without `ampmon run`. With
    ``tracker=wandb``, ampmon's values join the rows that the Trainer logs there; see `trackers.log_metrics`. A training
    resumed from a checkpoint continues its run, and so does a retry of `auto_find_batch_size`. The end of `train()`
    ends the run and may block for up to five seconds, to deliver it. So may the next training after one that raised.
    Nothing else here raises, blocks or syncs.
    """

    _training: Proposal | None = None
    """The run of a training that has not ended. The Trainer tells no callback of an exception."""
    _state: Any = None
    """The state of the Trainer whose training began last."""

    def __init__(self, tracker: Any = None) -> None:
        self._tracker = tracker
        self.run_id: str | None = None
        self._proposal = Proposal()
        self._spare = False
        """Whether another callback records the same training."""

    @harmless
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._spare, AmpmonCallback._state = AmpmonCallback._state is state, state
        if self._spare:
            warn(
                "ampmon: this Trainer has several AmpmonCallbacks: the first one records, remove the others"
            )
            return
        retried = args.auto_find_batch_size and AmpmonCallback._training is self._proposal
        known = current_run.current() if retried else None
        if known is not None:
            known.event("retry", batch_size=state.train_batch_size)
        else:
            self._propose(args, state)
        self._proposal.watch(getattr(kwargs.get("optimizer"), "scaler", None), kwargs.get("model"))
        self.run_id = None

    def _propose(self, args: Any, state: Any) -> None:
        if not _is_another_training():
            if AmpmonCallback._training is not None:
                AmpmonCallback._training.end("Exception")
            AmpmonCallback._training = self._proposal
        resumed = state.global_step > 0
        kept = (state.stateful_callbacks or {}).get(type(self).__name__) if resumed else None
        known = kept.get("attributes", {}).get("run_id") if isinstance(kept, dict) else None
        self._proposal.make(
            args.run_name, args.to_dict(), known, state.global_step if known else None
        )

    @harmless
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.run_id is None and (known := run_id()) is not None:
            self.run_id = known
            # The Trainer's format for callback states. Its base class fails on checkpoints without this callback.
            kept = {"args": {}, "attributes": {"run_id": known}}
            state.stateful_callbacks = {
                **(state.stateful_callbacks or {}),
                type(self).__name__: kept,
            }

    @harmless
    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero and not self._spare:
            run.log(numbers(logs or {}), step=state.global_step)
            if self._tracker is not None:
                log_metrics(self._tracker, state.global_step)

    @harmless
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._proposal.end()
        AmpmonCallback._state = None
        if AmpmonCallback._training is self._proposal:
            AmpmonCallback._training = None


def _is_another_training() -> bool:
    """Whether another training runs: one that began this one, or one of another thread. Call it from a callback."""
    own = [frame.f_code for frame, _ in walk_stack(sys._getframe())]
    names = [code.co_name for code in own]
    if "call_event" not in names[:-2]:
        return False
    # The loop called the handler's method, which called `call_event`.
    loop = own[names.index("call_event") + 2]
    tops = sys._current_frames().values()
    return sum(frame.f_code is loop for top in tops for frame, _ in walk_stack(top)) > 1
