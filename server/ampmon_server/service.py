"""What the routes work with: the open store, the keys, the bus and the writing thread. Built and closed as one."""

from __future__ import annotations

from dataclasses import dataclass, field

from ampmon_server.auth import Keys, Logins
from ampmon_server.bus import Bus
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from ampmon_server.writer import Writer


@dataclass(frozen=True, slots=True)
class Service:
    """An open server, without its routes."""

    settings: Settings
    store: Store
    keys: Keys
    logins: Logins = field(default_factory=Logins)
    bus: Bus = field(default_factory=Bus)
    writer: Writer = field(default_factory=Writer)

    @classmethod
    def open(cls, settings: Settings) -> Service:
        """Open data directory and database, made if need be. Raises KeyProblem or Unusable, which say what to do."""
        keys = Keys.load(settings.data_directory)
        return cls(settings, Store.open(settings), keys)

    def close(self) -> None:
        self.bus.close()
        self.writer.close()
        self.store.close()
