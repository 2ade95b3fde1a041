"""Delivers alert messages. Each target has its own task, so one that hangs delays no other target and no request.

Several server processes may deliver at once. A process takes a message before sending it, so no other process sends it
too. If that process dies, another one sends the message.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ampmon_server.alerting.delivery import deliver, words
from ampmon_server.alerting.messages import DeliveryOutcome, Trouble
from ampmon_server.alerting.targets import Alerts, Target
from ampmon_server.background.bus import Bus
from ampmon_server.background.writer import QueueFull, Writer
from ampmon_server.store.engine.errors import StoreError
from ampmon_server.store.reading.alarms import AlertCalls


POLL_S = 0.5
"""Interval between checks for due messages. A check is one small indexed query."""
TIDY_S = 3600.0

Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class AlertSender:
    """Delivers to the targets of ``alerts`` until it is cancelled. ``sent`` and ``failed`` count attempts."""

    def __init__(self, store: AlertCalls, writer: Writer, bus: Bus, alerts: Alerts | None) -> None:
        self.sent = 0
        self.failed: Counter[Trouble] = Counter()
        self._store = store
        self._writer = writer
        self._bus = bus
        self._alerts = alerts
        self._running: dict[str, asyncio.Task[None]] = {}
        self._unread = False

    async def keep_delivering(self) -> None:
        """Send due messages forever. Return at once if no targets are configured."""
        if self._alerts is None:
            return
        targets = {target.name: target for target in self._alerts.targets}
        tidied = -TIDY_S
        try:
            while True:
                if time.monotonic() - tidied >= TIDY_S:
                    tidied = time.monotonic()
                    await self._try(lambda: self._store.tidy_messages(targets), writes=True)
                for name in await self._try(self._store.messages_due) or ():
                    if name in targets and name not in self._running:
                        self._begin(targets[name], self._alerts)
                await asyncio.sleep(POLL_S)
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _begin(self, target: Target, alerts: Alerts) -> None:
        task = asyncio.create_task(self._serve(target, alerts))
        self._running[target.name] = task
        task.add_done_callback(lambda _: self._running.pop(target.name))

    async def _serve(self, target: Target, alerts: Alerts) -> None:
        store, hourly, url = self._store, alerts.policy.hourly, alerts.public_url
        take = partial(store.take, target.name, hourly, url)
        while taken := await self._try(take, writes=True):
            outcome = await deliver(target, taken.message, allow_private=alerts.allow_private)
            self._count(target, outcome)
            # If this fails, the lease runs out, and the message is sent once more.
            settle = partial(store.settle, taken, outcome)
            for change in await self._try(settle, writes=True) or ():
                self._bus.publish(change)

    def _count(self, target: Target, outcome: DeliveryOutcome) -> None:
        if outcome.trouble is None:
            self.sent += 1
            return
        self.failed[outcome.trouble] += 1
        why = words(outcome.trouble, outcome.status)
        _log.warning("Alerts do not reach the target %s: %s", target.name, why)

    async def _try(self, ask: Callable[[], Result], *, writes: bool = False) -> Result | None:
        """Return the result of ``ask``, or None if the store cannot answer now, so delivery goes on."""
        try:
            answer = await (self._writer.run(ask) if writes else asyncio.to_thread(ask))
        except (StoreError, QueueFull):
            return None
        except Exception as error:  # any kind: an uncaught error would end this task unnoticed
            if not self._unread:
                _log.warning(
                    "Alerts are delayed: cannot read or update their messages", exc_info=error
                )
            self._unread = True
            return None
        self._unread = False
        return answer
