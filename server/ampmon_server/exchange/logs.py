"""Reads the loss scale from text logs of DeepSpeed, Megatron-LM, fairseq and Apex, and from prints.

Each reader parses the lines of one framework. `reconstructing` reconstructs the updates between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ampmon.errors import AmpmonError
from ampmon.numerics.formats import FP32
from ampmon.wire import COUNT_MAX


class LogLine(NamedTuple):
    """What one line says.

    ``step`` is how many updates were done, and ``scale`` the scale from then on. A line about a single skip has no
    step, ``skipped`` 1, and the earlier scale in ``before``. On other lines ``skipped`` counts the skips since the last
    such line, or is None if the line does not say. Times are in microseconds since the epoch.
    """

    line: int
    step: int | None = None
    scale: float | None = None
    before: float | None = None
    skipped: int | None = None
    time: int | None = None
    loss: float | None = None

    @property
    def is_skip(self) -> bool:
        return self.step is None and self.skipped == 1


class Rules(NamedTuple):
    """How a framework moves its scale, unless its log says otherwise."""

    scaler: str
    device: str = "none"
    growth_interval: int = 1000
    hysteresis: int = 1
    min_scale: float = 0.0
    is_stated: bool = False
    """Whether the log itself states the interval."""


class Log(NamedTuple):
    """A parsed log: its framework, the rules of its scaler, and its marks."""

    framework: str
    rules: Rules
    marks: list[LogLine]


class CannotImport(AmpmonError):
    """The files hold no run that can be imported. The message says why."""


Lines: TypeAlias = Iterable[tuple[int, str]]
_LINE_MAX = 2**14
"""Characters that are searched at once, so that a line without end costs neither memory nor hours."""
_WHOLE = r"(\d{1,18})"
_NUMBER = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))"
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[,.](\d{1,6}))?")
_STEP = re.compile(
    rf"(?:\b(?:global[_ ]step|step|iteration|iter|it)\b[\"']?[\s:=#\[(]*{_WHOLE})|\b{_WHOLE}/\d+ \[\d",
    re.IGNORECASE,
)
_LOSS = re.compile(rf"\bloss\b[\"']?[\s:=]*{_NUMBER}", re.IGNORECASE)


def _time(line: str) -> int | None:
    """The time of a line, None if it has none from 1970 to 2255. Logs name no time zone, so UTC is assumed."""
    found = _TIME.search(line)
    if found is None:
        return None
    try:
        stamp = datetime.fromisoformat(f"{found[1]}T{found[2]}").replace(tzinfo=timezone.utc)
    except ValueError:  # digits that are no date
        return None
    time = int(stamp.timestamp()) * 1_000_000 + int((found[3] or "0").ljust(6, "0"))
    return time if 0 <= time <= COUNT_MAX else None


def _step(line: str) -> int | None:
    found = _STEP.search(line)
    return None if found is None else int(found[1] or found[2])


def _loss(line: str) -> float | None:
    found = _LOSS.search(line)
    return None if found is None else float(found[1])


# deepspeed/runtime/fp16/loss_scaler.py, fused_optimizer.py and unfused_optimizer.py; engine.py for `step=`
_DEEPSPEED = re.compile(
    rf"Skipping step\. Attempted loss scale: {_NUMBER}, (?:reducing to {_NUMBER}|but hysteresis)"
)
_DEEPSPEED_STEP = re.compile(rf"\bstep={_WHOLE}, skipped=\d+, lr=\[")


def _deepspeed(lines: Lines) -> Iterator[LogLine]:
    for number, line in lines:
        if found := _DEEPSPEED.search(line):
            before = float(found[1])
            after = float(found[2]) if found[2] else before
            yield LogLine(number, scale=after, before=before, skipped=1, time=_time(line))
        elif (found := _DEEPSPEED_STEP.search(line)) and int(found[1]):  # 0: the engine's start
            yield LogLine(number, int(found[1]), time=_time(line))


# megatron/training/training.py, `training_log`
_MEGATRON = re.compile(rf"\biteration\s+{_WHOLE}/\s*\d+ \|.*\| loss scale: {_NUMBER} \|")
_MEGATRON_SKIPPED = re.compile(rf"number of skipped iterations:\s*{_WHOLE}")
_MEGATRON_LOSS = re.compile(rf"\| (?:lm )?loss: {_NUMBER} \|")


def _megatron(lines: Lines) -> Iterator[LogLine]:
    for number, line in lines:
        if found := _MEGATRON.search(line):
            skipped, loss = _MEGATRON_SKIPPED.search(line), _MEGATRON_LOSS.search(line)
            yield LogLine(
                number,
                int(found[1]),
                float(found[2]),
                skipped=int(skipped[1]) if skipped else None,
                time=_time(line),
                loss=float(loss[1]) if loss else None,
            )


# fairseq/trainer.py and optim/dynamic_loss_scaler.py; fairseq/logging/progress_bar.py: as JSON, or words
_FAIRSEQ = re.compile(
    rf"gradient overflow detected, ignoring gradient, setting loss scale to: {_NUMBER}"
)
_FAIRSEQ_AMP = re.compile(rf"AMP: overflow detected, setting scale to (?:to )?{_NUMBER}")
_FAIRSEQ_END = re.compile(rf"Minimum loss scale reached \({_NUMBER}\)")
_FAIRSEQ_FIELD = r"[\"']?{}[\"']?[=:]\s*[\"']?"
_FAIRSEQ_DONE = re.compile(_FAIRSEQ_FIELD.format("num_updates") + _WHOLE)
_FAIRSEQ_SCALE = re.compile(_FAIRSEQ_FIELD.format("loss_scale") + _NUMBER)
_FAIRSEQ_LOSS = re.compile(_FAIRSEQ_FIELD.format(r"\bloss") + _NUMBER)


def _fairseq(lines: Lines) -> Iterator[LogLine]:
    """Read fairseq. Its `num_updates` counts only updates that were not skipped."""
    skips = 0
    for number, line in lines:
        if found := _FAIRSEQ.search(line) or _FAIRSEQ_AMP.search(line):
            skips += 1
            after = float(found[1])
            yield LogLine(number, scale=after, before=2 * after, skipped=1, time=_time(line))
        elif found := _FAIRSEQ_END.search(line):
            # fairseq ends the training with this line.
            skips += 1
            yield LogLine(number, scale=float(found[1]) / 2, skipped=1, time=_time(line))
            return
        elif "train_inner" in line and (found := _FAIRSEQ_DONE.search(line)):
            scale, loss = _FAIRSEQ_SCALE.search(line), _FAIRSEQ_LOSS.search(line)
            yield LogLine(
                number,
                int(found[1]) + skips,
                float(scale[1]) if scale else None,
                time=_time(line),
                skipped=0 if scale else None,
                loss=float(loss[1]) if loss else None,
            )


# apex/amp/handle.py; apex/fp16_utils/fp16_optimizer.py
_APEX = re.compile(
    rf"Gradient overflow\.\s+Skipping step,(?: loss scaler \S+)? reducing loss scale to {_NUMBER}"
    rf"|OVERFLOW! Skipping step\. Attempted loss scale: {_NUMBER}, reducing to {_NUMBER}"
)


def _apex(lines: Lines) -> Iterator[LogLine]:
    overflows = False
    for number, line in lines:
        if found := _APEX.search(line):
            overflows = True
            after = float(found[1] or found[3])
            before = float(found[2]) if found[2] else 2 * after
            yield LogLine(number, scale=after, before=before, skipped=1, time=_time(line))
        elif overflows and (step := _step(line)) is not None:
            yield LogLine(number, step, time=_time(line), loss=_loss(line))


# `scaler.get_scale()` as users print it: after its name, or alone on its line
_SCALE = re.compile(
    rf"\b(?:\w*[_ ])?scale(?:r)?\b(?:\.get_scale\(\))?[\"']?[\s:=]+{_NUMBER}", re.IGNORECASE
)
_BARE = re.compile(r"^\s*(\d+\.\d*(?:e[-+]?\d+)?)\s*$")


def _prints(lines: Lines) -> Iterator[LogLine]:
    for number, line in lines:
        if found := _SCALE.search(line) or _BARE.search(line):
            yield LogLine(number, _step(line), float(found[1]), time=_time(line), loss=_loss(line))


# The rules are the defaults of each scaler class, for logs that do not state their settings.
_READERS: Mapping[str, tuple[Callable[[Lines], Iterator[LogLine]], Rules]] = {
    "deepspeed": (_deepspeed, Rules("deepspeed.DynamicLossScaler", hysteresis=2, min_scale=1.0)),
    "megatron": (_megatron, Rules("megatron.DynamicGradScaler", hysteresis=2, min_scale=1.0)),
    "fairseq": (_fairseq, Rules("fairseq.DynamicLossScaler", growth_interval=2000)),
    "apex": (_apex, Rules("apex.amp.scaler.LossScaler", growth_interval=2000)),
    "prints": (
        _prints,
        Rules("torch.amp.grad_scaler.GradScaler", device="cuda", growth_interval=2000),
    ),
}
FRAMEWORKS = tuple(_READERS)
_SETTING = re.compile(
    r"\b(loss_scale_window|fp16_scale_window|scale_window|growth_interval|hysteresis|delayed_shift|min_loss_scale|"
    r"min_scale)[\"']?\s*(?:\.{2,}|[:=])\s*(\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\b"
)


def read_log(path: Path, framework: str | None = None) -> Log:
    """Read a log as that of the first framework whose lines it contains. Raises CannotImport and OSError."""
    with path.open("rb") as file:
        start = file.read(512)
    is_page = start.lstrip().lower().startswith(b"<!doctype")
    if b"\0" in start or is_page or path.suffix == ".py":  # settings in a script look like prints
        raise CannotImport(f"{path} is not a text log")
    for name in (framework,) if framework else FRAMEWORKS:
        reader, rules = _READERS[name]
        marks = [
            each._replace(scale=_in_fp32(each.scale), before=_in_fp32(each.before))
            for each in reader(_lines(path))
        ]
        scales = {each.scale for each in marks} - {None}
        if not scales:
            continue
        if scales == {1.0} and not any(each.skipped for each in marks):
            raise CannotImport(
                f"{path}: the loss scale is always 1: a run in bf16 or fp32 needs none"
            )
        return Log(name, rules._replace(**_settings(path)), marks)
    known = "DeepSpeed, Megatron-LM, fairseq, Apex, or a printed scaler.get_scale()"
    raise CannotImport(
        f"{path}: no line reports a loss scale in the format of {framework or known}"
    )


def _in_fp32(scale: float | None) -> float | None:
    """The scale if fp32 holds it. Otherwise, or if it is NaN, it says as little as none."""
    return scale if scale is not None and abs(scale) <= FP32.max else None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from enumerate(iter(partial(file.readline, _LINE_MAX), ""))


def _settings(path: Path) -> dict[str, Any]:
    """The rules that the log states, in the configuration that its framework prints."""
    found: dict[str, Any] = {}
    for _, line in _lines(path):
        if "scale" in line or "hysteresis" in line:
            for name, written in _SETTING.findall(line):
                value = min(float(written), float(COUNT_MAX))
                if name in {"hysteresis", "delayed_shift"}:
                    found["hysteresis"] = max(int(value), 1)
                elif name.startswith("min"):
                    found["min_scale"] = value
                elif value >= 1:
                    found |= {"growth_interval": int(value), "is_stated": True}
    return found
