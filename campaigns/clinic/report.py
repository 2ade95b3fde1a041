"""The clinic in words: tables of who was found, the result that is committed, and docs/clinic.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from benchmarks import machine, report
from campaigns.clinic.verdict import Verdict


ROOT = Path(report.__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "clinic.md"

FOUND, FALSE, CURED = 0.97, 0.01, 0.95
"""The bars for those drawn: found at least, falsely alarmed at most, cured of those that code can cure at least."""

ABOUT = """\
# The clinic

`make clinic` trains small models in fp16 on the CPU, each sick in one known way or healthy: real digits, real
overflows, real processes, some of them killed. The real client records them, the real server stores and diagnoses
them. A sick one counts as found if its first finding names what it is sick of, and in the right layer where it is sick
in one. A healthy one that is told of a warning or worse is a false alarm; notices are allowed.

The run's recommended code is then put into the sick training, which runs again. It counts as cured if no rule finds its
sickness, or anything else worth a warning, and its final loss is finite and at most 5 % above that of the same training
in fp32 without the mistake, with the same batches skipped. One final loss is noisy, by rounding alone. Where the loss
alone is too high, both are therefore trained with four more seeds, and the geometric mean of the five ratios decides.
Where no code can cure, the table says what the finding says to look at. This page is written by the command.
"""
FIXED = """\
## Patients that are always the same

What each has is in `campaigns/clinic/patients.py`.
"""
DRAWN = """\
## Patients drawn at random

Model, optimizer, learning rate, batch, seeds, scale, sickness and how bad it is are drawn by a seed, the hash of the
commit that last changed the rules: they cannot have been tuned to these patients, for a change of a rule draws others.
The bars: 97 % found, at most 1 % false alarms, 95 % cured of those that code can cure.
"""


class Examined(NamedTuple):
    """What came out, and by which commit's hash the drawn ones were drawn.

    ``contradicted`` are those always the same for which page, report and doctor do not recommend the same.
    """

    fixed: Sequence[Verdict]
    drawn: Sequence[Verdict]
    seed: str
    training_seconds: float
    contradicted: Sequence[str] = ()


def tables(examined: Examined) -> str:
    """Everything as Markdown."""
    parts = [ABOUT]
    if examined.fixed:
        parts += [FIXED, _sum(examined.fixed), _agreement(examined), _each(examined.fixed)]
    if examined.drawn:
        parts += [DRAWN, f"Drawn by {examined.seed}.\n", _sum(examined.drawn)]
        parts += [confusion(examined.drawn), _wrong(examined.drawn)]
    return "\n".join(part for part in parts if part)


def write(examined: Examined) -> None:
    """The result among those of the benchmarks, and the page."""
    torch.set_num_threads(1)  # as in the trainings
    figures: dict[str, Any] = {
        "command": "make clinic",
        "machine": machine.describe(),
        "rules": examined.seed,
        "training_seconds": round(examined.training_seconds),
        "fixed": [msgspec.to_builtins(each) for each in examined.fixed],
        "drawn": [msgspec.to_builtins(each) for each in examined.drawn],
    }
    report.write(RESULTS / f"{machine.slug()}-clinic", compact(examined, figures), figures)
    about = _about(figures)
    measured = f"\nThe rules are those of {examined.seed}. Trained on: {about}.\n"
    PAGE.write_text(tables(examined) + measured)


def compact(examined: Examined, figures: Mapping[str, Any]) -> str:
    """Who was found, in a table of sicknesses for each kind of patient; ``figures`` say where and by what."""
    text = (
        f"# The clinic\n\nMeasured by `{figures['command']}` on: {_about(figures)}. "
        f"The rules are those of {figures['rules']}.\n"
    )
    for title, verdicts in (
        ("Patients that are always the same", examined.fixed),
        ("Patients drawn at random", examined.drawn),
    ):
        if verdicts:
            text += f"\n## {title}\n\n{_sum(verdicts)}\n{confusion(verdicts)}"
    return text


def _about(figures: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in figures["machine"].items())


def enough(examined: Examined) -> bool:
    """All always the same are right, cured and agree; of the drawn, so many as the bars ask for."""
    sick = [each.right for each in examined.drawn if each.sick]
    healthy = [each.right for each in examined.drawn if not each.sick]
    curable = [each.cured for each in examined.drawn if each.sick and not each.incurable]
    return (
        all(each.right and each.cured for each in examined.fixed)
        and not examined.contradicted
        and sum(sick) >= FOUND * len(sick)
        and sum(healthy) >= (1 - FALSE) * len(healthy)
        and sum(curable) >= CURED * len(curable)
    )


def _sum(verdicts: Sequence[Verdict]) -> str:
    sick = [each for each in verdicts if each.sick]
    healthy = [each for each in verdicts if not each.sick]
    found, false = sum(each.right for each in sick), sum(not each.right for each in healthy)
    return (
        f"Of {len(sick)} sick ones {found} were found{_share(found, len(sick))}; "
        f"of {len(healthy)} healthy ones {false} were falsely alarmed{_share(false, len(healthy))}. "
        + _cures(sick)
    )


def _cures(sick: Sequence[Verdict]) -> str:
    curable = [each for each in sick if not each.incurable]
    cured = sum(each.cured for each in curable)
    looked = sum(each.cured for each in sick if each.incurable)
    return (
        f"Code can cure {len(curable)} of the sick ones: the recommended code cures {cured}"
        f"{_share(cured, len(curable))}. Of the other {len(sick) - len(curable)}, {looked} are told what to look at.\n"
    )


def _agreement(examined: Examined) -> str:
    agree = len(examined.fixed) - len(examined.contradicted)
    return (
        f"Page, report and `ampmon doctor` recommend at most one change, and the same, for {agree} of "
        f"{len(examined.fixed)}.\n"
    )


def _share(part: int, whole: int) -> str:
    return f" ({part / whole:.1%})" if whole else ""


def _each(verdicts: Iterable[Verdict]) -> str:
    rows = (
        (
            *(each.patient, each.about, _named(each), each.title),
            *(_found(each), _said(each.layer_right) if each.layer else ""),
            *(_said(each.right), _cured(each)),
        )
        for each in verdicts
    )
    head = ("patient", "what it has", "first finding", "in words")
    return _table((*head, "found", "layer", "first is right", "cured"), rows)


def _said(right: bool) -> str:
    return "yes" if right else "**no**"


def _found(verdict: Verdict) -> str:
    return _said(verdict.found) if verdict.sick else ""


def _cured(verdict: Verdict) -> str:
    """Whether it was cured, and if not what was left; what to look at where no code cures."""
    if not verdict.sick:
        return ""
    if verdict.incurable:
        return f"look at: {_first_line(verdict.fix)}" if verdict.fix else "**no**"
    return _said(verdict.cured) + ("" if verdict.cured else f": {_left(verdict)}")


def _first_line(code: str) -> str:
    return f"`{code.splitlines()[0].removeprefix('# ')}`"


def _left(verdict: Verdict) -> str:
    cure = verdict.cure
    if cure is None:
        return "nothing is recommended"
    if not cure.run_id:
        return "the code has no place in the training"
    if cure.left:
        return f"{', '.join(cure.left)} left"
    losses = ", ".join(f"{loss:.3g} instead of {twin:.3g}" for loss, twin in cure.pairs)
    return f"loss {losses}"


def confusion(verdicts: Iterable[Verdict]) -> str:
    """For each sickness how many had it, and what was named first."""
    named: dict[str, list[Verdict]] = {}
    for each in sorted(verdicts, key=lambda each: (each.sick, each.rules)):
        named.setdefault(" or ".join(each.rules) or "healthy", []).append(each)
    rows = (
        (sickness, str(len(group)), str(sum(each.right for each in group)), _counted(group))
        for sickness, group in named.items()
    )
    return _table(("sick of", "patients", "right", "first finding"), rows)


def _counted(verdicts: Iterable[Verdict]) -> str:
    counts = Counter(_named(each) for each in verdicts)
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def _wrong(verdicts: Iterable[Verdict]) -> str:
    rows = [
        (
            *(each.patient, " or ".join(each.rules) or "healthy", _named(each), each.title),
            *(_said(each.right), _cured(each)),
        )
        for each in verdicts
        if not (each.right and each.cured)
    ]
    head = ("missed", "has", "first finding", "in words", "first is right", "cured")
    return _table(head, rows) if rows else ""


def _named(verdict: Verdict) -> str:
    return f"{verdict.first} ({verdict.severity})" if verdict.first else "none"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in cells)
