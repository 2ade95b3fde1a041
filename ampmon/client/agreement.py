"""Finds this process's rank, and the run id that all ranks share, without a collective and off the training thread.

Uses torch.distributed only if the process has already loaded it.
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
    """This process's rank and the number of ranks: from the process group, else from the launcher."""
    distributed = _distributed()
    if distributed is not None:
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return identity.rank_of_process()


def agree_on_run_id(
    rank: int, generation: int, own: UUID, cancelled: threading.Event
) -> UUID | None:
    """Return the run id that rank 0 puts into the process group's store: its ``own``. Blocks, so call it on a thread.

    ``generation`` numbers the runs of a process. It is the same on all ranks.

    Return None if no process group or no id appears within five minutes or until ``cancelled`` is set. One last check
    follows even then: a rank 0 that ends early must still store its id, because the other ranks wait for it.
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
        # check() returns at once. A blocking get() would hold the store's lock, and so block training.
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
