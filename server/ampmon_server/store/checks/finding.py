"""What a check has found: where, what, and what to do about it."""

from __future__ import annotations

from typing import NamedTuple


REPAIR = "ampmon db verify --repair makes it anew from the rows"
RESTORE = "nothing here can make it anew: restore a copy of the database"


class Finding(NamedTuple):
    """One thing that is not as it must be; as text it is one line."""

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.remedy}"
