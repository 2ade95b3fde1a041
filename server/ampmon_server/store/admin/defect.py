"""The defect that each check of `ampmon db verify` reports."""

from __future__ import annotations

from typing import NamedTuple


REPAIR = "ampmon db verify --repair rebuilds it from the rows"
RESTORE = "it cannot be rebuilt: restore a copy of the database"
DELETE = "ampmon db verify --repair deletes them"


class Defect(NamedTuple):
    """A defect in the database: where, what, and the remedy. Its text is one line."""

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.remedy}"

    def of_run(self, run_id: object) -> Defect:
        """The defect with its run before the place."""
        return self._replace(where=f"run {run_id}, {self.where}".removesuffix(", "))
