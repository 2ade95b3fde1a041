"""The clinic's results: tables, the committed result, and docs/clinic.md."""

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
PAGE = ROOT / "docs" / "clinic.md"

FOUND, FALSE, CURED = 0.97, 0.01, 0.95
"""The bars for random patients: found at least, false alarms at most, cured at least (of the curable)."""

ABOUT = """\
# The clinic

`make clinic` trains small models in fp16 on the CPU. Each training has one known fault, or none. Data, overflows and
processes are real, and some processes are killed. ampmon's client records each training, and its server diagnoses it.
The command writes this page.

- **Found**: the first finding names the fault. If the fault is in one layer, the finding also names that layer.
- **False alarm**: a healthy training gets a warning or a critical finding. Notices are allowed.
- **Cured**: the faulty training runs again with the recommended code. No rule finds the fault any more, and none gives
  a warning. The final loss is finite, and at most 5 % above the loss of its twin: the same training in fp32, without
  the fault, with the same batches skipped. One final loss is noisy. So if only the loss is too high, both train with
  four more seeds, and the geometric mean of the five ratios decides.
- **Look at**: no code cures the fault, as with bad data. The finding then says what to look at.
"""
FIXED = """\
## Fixed trainings

`campaigns/clinic/patients.py` defines them.
"""
DRAWN = """\
## Random trainings

A seed draws model, optimizer, learning rate, batch size, scale, fault and severity. Half of the trainings are healthy.
Among them are adversarial pairs, up to 16 backward passes per step, resumed runs, two ranks, bf16 and fp8.
`campaigns/clinic/conditions.py` lists all faults and healthy kinds.

The seed is the hash of the last commit that changed a rule. So no rule was tuned to these trainings: each change of a
rule draws others. The targets are at least 97 % found, at most 1 % false alarms, and at least 95 % cured.
"""


class Examined(NamedTuple):
    """The verdicts, and the seed of the random patients.

    ``contradicted`` names the fixed patients for which page, report and doctor do not agree.
    """

    fixed: Sequence[Verdict]
    drawn: Sequence[Verdict]
    seed: str
    training_seconds: float
    contradicted: Sequence[str] = ()


def tables(examined: Examined) -> str:
    """The complete results as Markdown."""
    parts = [ABOUT]
    if examined.fixed:
        parts += [FIXED, _sum(examined.fixed) + _agreement(examined), _each(examined.fixed)]
    if examined.drawn:
        parts += [DRAWN, f"Seed: {examined.seed}\n", _sum(examined.drawn)]
        parts += [confusion(examined.drawn), _wrong(examined.drawn)]
    return "\n".join(part for part in parts if part)


def write(examined: Examined) -> None:
    """Write the result beside those of the benchmarks, and docs/clinic.md."""
    torch.set_num_threads(1)  # as in the trainings
    figures: dict[str, Any] = {
        "command": "make clinic",
        "machine": machine.describe(),
        "rules": examined.seed,
        "training_seconds": round(examined.training_seconds),
        "fixed": [msgspec.to_builtins(each) for each in examined.fixed],
        "drawn": [msgspec.to_builtins(each) for each in examined.drawn],
    }
    report.write(report.RESULTS / f"{machine.slug()}-clinic", compact(examined, figures), figures)
    machine_words = report.machine_of(figures)
    measured = f"\nRules of commit {examined.seed}, measured on: {machine_words}.\n"
    PAGE.write_text(tables(examined) + measured)


def compact(examined: Examined, figures: Mapping[str, Any]) -> str:
    """The confusion table of fixed and random patients. ``figures`` name machine, command and commit."""
    text = (
        f"# The clinic\n\nMeasured by `{figures['command']}` on: {report.machine_of(figures)}. "
        f"Rules of commit {figures['rules']}.\n"
    )
    for title, verdicts in (
        ("Fixed trainings", examined.fixed),
        ("Random trainings", examined.drawn),
    ):
        if verdicts:
            text += f"\n## {title}\n\n{_sum(verdicts)}\n{confusion(verdicts)}"
    return text


def enough(examined: Examined) -> bool:
    """Whether all fixed patients are right, cured and not contradicted, and the random ones meet the bars."""
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
    curable = [each for each in sick if not each.incurable]
    others = [each for each in sick if each.incurable]
    return (
        f"- Found: {_share([each.right for each in sick], 'faults')}\n"
        f"- False alarms: {_share([not each.right for each in healthy], 'healthy trainings')}\n"
        f"- Cured by the recommended code: {_share([each.cured for each in curable], 'faults that code can cure')}\n"
        f"- Advised what to inspect: {_share([each.cured for each in others], 'other faults')}\n"
    )


def _agreement(examined: Examined) -> str:
    agree = [each.patient not in examined.contradicted for each in examined.fixed]
    return (
        "- At most one recommendation, the same on the page, in the report and in `ampmon doctor`: "
        f"{_share(agree, 'trainings')}\n"
    )


def _share(flags: Sequence[bool], of: str) -> str:
    percent = f" ({100 * sum(flags) / len(flags):.1f} %)" if flags else ""
    return f"{sum(flags)} of {len(flags)} {of}{percent}"


def _each(verdicts: Iterable[Verdict]) -> str:
    rows = (
        (
            *(each.patient, each.about, _named(each), each.title),
            *(_found(each), _said(each.layer_right) if each.layer else ""),
            *(_said(each.right), _cured(each)),
        )
        for each in verdicts
    )
    head = ("training", "description", "first finding", "title", "any finding names it", "layer")
    return _table((*head, "found", "cured"), rows)


def _said(right: bool) -> str:
    return "yes" if right else "**no**"


def _found(verdict: Verdict) -> str:
    return _said(verdict.found) if verdict.sick else ""


def _cured(verdict: Verdict) -> str:
    """Whether it was cured, else what is left; for an incurable fault, what to look at."""
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
    """For each fault, the number of trainings and their first findings."""
    named: dict[str, list[Verdict]] = {}
    for each in sorted(verdicts, key=lambda each: (each.sick, each.rules)):
        named.setdefault(" or ".join(each.rules) or "healthy", []).append(each)
    rows = (
        (sickness, str(len(group)), str(sum(each.right for each in group)), _counted(group))
        for sickness, group in named.items()
    )
    return _table(("fault", "trainings", "correct", "first finding"), rows)


def _counted(verdicts: Iterable[Verdict]) -> str:
    counts = Counter(_named(each) for each in verdicts)
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def _wrong(verdicts: Iterable[Verdict]) -> str:
    rows = [
        (
            *(each.patient.rpartition(" ")[0], " or ".join(each.rules) or "healthy"),
            *(_named(each), each.title, _said(each.right), _cured(each)),
        )
        for each in verdicts
        if not (each.right and each.cured)
    ]
    head = ("missed", "fault", "first finding", "title", "found", "cured")
    return _table(head, rows) if rows else ""


def _named(verdict: Verdict) -> str:
    return f"{verdict.first} ({verdict.severity})" if verdict.first else "none"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in cells)
