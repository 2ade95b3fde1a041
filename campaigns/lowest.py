"""Prints the lowest allowed versions of what the product depends on, as constraints for pip: see `make test-lowest`."""

from __future__ import annotations

from pathlib import Path

import msgspec
from packaging.requirements import Requirement


EXTRAS = "torch", "server", "postgres", "alerts", "files", "mlflow"


def lowest(project: Path) -> list[str]:
    """Requirements of exactly the lower bounds in a pyproject.toml, for this version of Python."""
    declared = msgspec.toml.decode(project.read_bytes())["project"]
    optional = declared["optional-dependencies"]
    each = map(Requirement, sum((optional[extra] for extra in EXTRAS), declared["dependencies"]))
    return [_at_its_bound(one) for one in each if one.marker is None or one.marker.evaluate()]


def _at_its_bound(requirement: Requirement) -> str:
    bound = next(part.version for part in requirement.specifier if part.operator == ">=")
    return f"{requirement.name}=={bound}"


if __name__ == "__main__":
    print(*lowest(Path("pyproject.toml")), sep="\n")
