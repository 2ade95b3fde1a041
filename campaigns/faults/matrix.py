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
    """One way for one operation of one part to fail, at any call."""

    part: str
    operation: str
    kind: str
    times: int = 1
    plant: str = ""
    """A planted bug that the cell must find."""

    @property
    def everywhere(self) -> bool:
        """Whether its start matters, so that every call is tried: not for a fault that outlasts several retries."""
        return self.times != LASTING

    @property
    def name(self) -> str:
        lasting = {1: "", FOR_GOOD: ", for good"}.get(self.times, f", {self.times} times")
        planted = f" ({self.plant})" if self.plant else ""
        return f"{self.part}/{self.operation}/{self.kind}{lasting}{planted}"

    def fault(self, number: int) -> Fault:
        return Fault(self.operation, self.kind, number, self.times)


def lines() -> Iterator[Line]:
    """The whole matrix, except the numbers of the calls."""
    for part, operations in PARTS.items():
        for operation, kinds in operations.items():
            for kind in kinds:
                yield Line(part, operation, kind)
                if kind in LASTS:
                    yield Line(part, operation, kind, FOR_GOOD if part == "trainer" else LASTING)


SHORT = {"ENOSPC", "ECONNREFUSED", "503", "lost ack"}
"""The kinds whose lasting faults the test suite also runs."""


def short() -> list[Line]:
    return [line for line in lines() if line.times == 1 or line.kind in SHORT]


PLANTED = (
    Line("server", "commit", "kill", plant="acknowledges before commit"),
    Line("server", "request", "500", plant="takes silence for acknowledgement"),
    Line("server", "request", "double", plant="stores whatever comes"),
)


def some(line: Line, calls: int, most: int) -> list[int]:
    """Choose up to ``most`` of a line's calls. Lines of the same operation get others, spread from first to last."""
    beside = [
        each for each in lines() if (each.part, each.operation) == (line.part, line.operation)
    ]
    place = beside.index(line) / (len(beside) - 1) if line in beside else 0.5
    shares = ((place + further / most) for further in range(most))
    return sorted({1 + round((share - (share > 1)) * (calls - 1)) for share in shares} - {0})
