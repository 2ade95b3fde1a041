"""How the ranks of a run come to agree on who they are, without a collective and off the training thread.

Loads torch.distributed only where the process already has.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any
from uuid import UUID

from ampmon import identity


_POLL_S = 0.05
_PATIENCE_S = 300.0


def rank_and_world_size() -> tuple[int, int]:
    """This process's rank and the number of ranks: of the process group, else what the launcher says."""
    distributed = _distributed()
    if distributed is not None:
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return identity.rank_of_process()


def agree_on_run_id(
    rank: int, generation: int, own: UUID, cancelled: threading.Event
) -> UUID | None:
    """The run id that rank 0 puts into the process group's store: its ``own``. Blocks: for a thread of its own.

    ``generation`` numbers the runs of a process, which are the same on all ranks.

    None when there is no process group within five minutes, or no answer, or ``cancelled`` is set, and nothing is there
    then either: the others wait for the word of a rank 0 that ends early.
    """
    key = f"ampmon/run_id/{generation}"
    deadline = time.monotonic() + _PATIENCE_S
    store: Any = None
    while True:
        last = cancelled.is_set() or time.monotonic() >= deadline
        if store is None and (distributed := _distributed()) is not None:
            store = distributed.distributed_c10d._get_default_store()
            if rank == 0:
                store.set(key, str(own))
                return own
        # check() answers at once. A blocking get() would hold the store's lock, and training with it.
        if store is not None and store.check([key]):
            return UUID(store.get(key).decode())
        if last:
            return None
        cancelled.wait(_POLL_S)


def _distributed() -> Any:
    module: Any = sys.modules.get("torch.distributed")
    return (
        module if module is not None and module.is_available() and module.is_initialized() else None
    )
