"""The dimensions of the matrix: which call of which part fails in which way. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from campaigns.faults.seams import FOR_GOOD, LASTING, Fault


DISK = {
    "create": ("EIO", "ENOSPC", "EMFILE", "hang", "kill", "kill after"),
    "write": ("EIO", "ENOSPC", "EINTR", "short", "hang", "kill", "kill after", "torn"),
    "fsync": ("EIO", "ENOSPC", "hang", "kill", "kill after"),
    "rename": ("EIO", "ENOSPC", "hang", "kill", "kill after"),
    "unlink": ("EIO", "EACCES", "kill", "kill after"),
}
NETWORK = {
    "connect": ("ECONNREFUSED", "timeout", "hang", "kill"),
    "send": ("reset", "timeout", "hang", "kill", "kill after", "torn"),
    "receive": ("reset", "timeout", "closed", "short", "hang", "kill", "kill after"),
}
REQUESTS = {
    "request": (
        *("401", "413", "429", "500", "503"),
        *("stored, 500", "lost ack", "double", "garbage"),
    ),
}
DATABASE = {
    "commit": ("EIO", "EIO after", "ENOSPC", "locked", "hang", "kill", "kill after"),
    "execute": ("EIO", "ENOSPC", "locked", "hang", "kill"),
}
PARTS = {"trainer": DISK, "sender": {**DISK, **NETWORK}, "server": {**REQUESTS, **DATABASE}}
LASTS = {"EIO", "ENOSPC", "hang", "ECONNREFUSED", "reset", "timeout", "locked"}
LASTS |= {"401", "413", "429", "500", "503", "lost ack", "double"}


@dataclass(frozen=True, slots=True)
class Line:
    """One way for one operation of one part to fail, at whichever call."""

    part: str
    operation: str
    kind: str
    times: int = 1
    plant: str = ""
    """A bug that is planted in it, which is to be found."""

    @property
    def everywhere(self) -> bool:
        """Whether it matters at which call it begins: not where a fault lasts until there is another try."""
        return self.times != LASTING

    @property
    def name(self) -> str:
        lasting = {1: "", FOR_GOOD: ", for good"}.get(self.times, f", {self.times} times")
        planted = f" ({self.plant})" if self.plant else ""
        return f"{self.part}/{self.operation}/{self.kind}{lasting}{planted}"

    def fault(self, number: int) -> Fault:
        return Fault(self.operation, self.kind, number, self.times)


def lines() -> Iterator[Line]:
    """All of the matrix but the numbers of the calls."""
    for part, operations in PARTS.items():
        for operation, kinds in operations.items():
            for kind in kinds:
                yield Line(part, operation, kind)
                if kind in LASTS:
                    yield Line(part, operation, kind, FOR_GOOD if part == "trainer" else LASTING)


SHORT = {"ENOSPC", "ECONNREFUSED", "503", "lost ack"}
"""What is left to last in the test suite."""


def short() -> list[Line]:
    """The lines that the test suite has time for."""
    return [line for line in lines() if line.times == 1 or line.kind in SHORT]


PLANTED = (
    Line("server", "commit", "kill", plant="acknowledges before commit"),
    Line("server", "request", "500", plant="takes silence for acknowledgement"),
    Line("server", "request", "double", plant="stores whatever comes"),
)


def some(line: Line, calls: int, most: int) -> list[int]:
    """At most ``most`` of the numbers of a line's calls; the lines beside it have others, from first to last."""
    beside = [
        each for each in lines() if (each.part, each.operation) == (line.part, line.operation)
    ]
    place = beside.index(line) / (len(beside) - 1) if line in beside else 0.5
    shares = ((place + further / most) for further in range(most))
    return sorted({1 + round((share - (share > 1)) * (calls - 1)) for share in shares} - {0})
