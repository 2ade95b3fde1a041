"""Writes the call that creates a scaler as code: the script's own, changed only where a fix needs it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ampmon import wire


STOCK: Mapping[str, str] = {
    "device": '"cuda"',
    "init_scale": "65536",
    "growth_factor": "2",
    "backoff_factor": "0.5",
    "growth_interval": "2000",
    "enabled": "True",
    "process_group": "None",
}
"""Arguments of torch's scalers with their defaults, in the order in which they are written."""
RULES = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
"""The arguments that decide how a scaler changes its scale."""
OURS = ("model", "name", "monitor", "on_finding")
_PLACES = {name: place for place, name in enumerate((*STOCK, *OURS))}
_NUMBER = re.compile(r"(2\.0\*\*)?(-?[\d.]+(?:e[+-]?\d+)?)")
_OWN = "ampmon.GradScaler"
_TORCHS = "torch.amp.GradScaler"
_SPELLED: Mapping[str, str] = {
    "ampmon.client.scaler.GradScaler": _OWN,
    "torch.amp.grad_scaler.GradScaler": _TORCHS,
    "torch.cuda.amp.grad_scaler.GradScaler": "torch.cuda.amp.GradScaler",
    "torch.cpu.amp.grad_scaler.GradScaler": "torch.cpu.amp.GradScaler",
}


@dataclass(frozen=True, slots=True)
class Call:
    """A script's call that creates its scaler.

    ``kind`` is the class with its module; without one it is taken for torch's. ``arguments`` are those that differ from
    the defaults, by name, as code. ``watched``: the call is inside `ampmon.watch(...)`.
    """

    kind: str
    arguments: Mapping[str, str]
    watched: bool = False

    def to_wire(self) -> wire.ScalerCall:
        return wire.ScalerCall(arguments=dict(self.arguments), watched=self.watched)

    def code(
        self,
        changes: Mapping[str, str] | None = None,
        note: str = "",
        running: Mapping[str, str] | None = None,
    ) -> str:
        """Return the line with ``changes`` made, and a comment that names each one and ends with ``note``."""
        given, marks = self.changed(changes or {}, running or {})
        comment = "; ".join(filter(None, (*marks, note)))
        return f"scaler = {self._made(given)}{'  # ' if comment else ''}{comment}"

    def changed(
        self, changes: Mapping[str, str], running: Mapping[str, str]
    ) -> tuple[dict[str, str], list[str]]:
        """Return the arguments with ``changes`` made, and a few words on each that differs.

        ``running`` are the scaler's current values, if its state or a setter may have replaced the script's.
        """
        given, marks = dict(self.arguments), []
        for name, value in changes.items():
            was = given.get(name, STOCK.get(name))
            if name == "model" and was is not None:
                continue  # the script has its own name for the model
            given[name] = _joined(was, value) if name == "monitor" and was is not None else value
            now = running.get(name, given[name])
            if was is None:
                marks.append(f"{name} is new")
            elif not _is_same(was, given[name]):
                marks.append(f"{name} was {was}")
            elif not _is_same(now, given[name]):
                marks.append(f"{name} is {now} in this run")
        return given, marks

    def _made(self, given: Mapping[str, str]) -> str:
        module, _, name = self.kind.rpartition(".")
        kind = _SPELLED.get(self.kind, name if module else _TORCHS)
        if "device" in given and kind in ("torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler"):
            kind = _TORCHS  # these take no device
        stock = stock_arguments(given)
        ours = list(_written(given, OURS))
        if kind == _OWN or (not self.watched and any(name in self.arguments for name in OURS)):
            return f"{kind}({', '.join(filter(None, (stock, *ours)))})"
        if not self.watched and not ours:
            return f"{kind}({stock})"
        return f"ampmon.watch({', '.join((f'{kind}({stock})', *ours))})"


def arguments(code: str) -> tuple[str, dict[str, str]]:
    """Split "A(b=c)" into the name A and its keyword arguments as code. Raises SyntaxError or ValueError."""
    call = ast.parse(code, mode="eval").body
    if not isinstance(call, ast.Call):
        raise ValueError(code)
    given = {
        each.arg: ast.get_source_segment(code, each.value) or ""
        for each in call.keywords
        if each.arg
    }
    return ast.unparse(call.func), given


def stock_arguments(given: Mapping[str, str]) -> str:
    """Write the arguments that torch's scalers take, as in a call."""
    return ", ".join(_written(given, STOCK))


def number(code: str) -> float | None:
    """Return the value of code such as "0.5" or "2.0**24", or None if it is no number."""
    found = _NUMBER.fullmatch(code)
    if found is None:
        return None
    return 2.0 ** float(found[2]) if found[1] else float(found[2])


def _written(given: Mapping[str, str], names: Mapping[str, str] | tuple[str, ...]) -> Iterator[str]:
    for name in sorted((name for name in given if name in names), key=_PLACES.__getitem__):
        yield given[name] if name == "device" else f"{name}={given[name]}"


def _joined(was: str, changed: str) -> str:
    """Merge the settings of two Config calls. Those of ``changed`` win."""
    try:
        kind, own = arguments(was)
        _, more = arguments(changed)
    except (SyntaxError, ValueError):
        return changed
    return f"{kind}({', '.join(f'{name}={value}' for name, value in {**own, **more}.items())})"


def _is_same(one: str, other: str) -> bool:
    value = number(one)
    return one == other if value is None else value == number(other)
