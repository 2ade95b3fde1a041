"""`make clinic`: train and diagnose the fixed patients, and 300 random ones whose seed is the last commit of a rule.

Finished trainings are kept in a folder, so an interrupted clinic continues where it stopped, and changed rules are
applied without training again.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from benchmarks import commits
from campaigns.clinic import drawn, pictures, report
from campaigns.clinic.patients import PATIENTS
from campaigns.clinic.session import Session
from campaigns.progress import kept, show


RULES = (
    ":/server/ampmon_server/analysis/diagnosis",
    ":/server/ampmon_server/model/thresholds.py",
    ":/ampmon/lints",
)
"""Where the rules are: the commit that last changed them is the seed of the random patients."""


PICTURES = Path(__file__).parents[2] / "docs" / "findings" / "img"
TRAINS = (
    *("training", "models", "healthy", "adversarial", "parallel"),
    *("sick_code", "sick_numbers", "sick_runs", "ward", "cure"),
)


def main() -> int:
    """Return the exit code: 0 if all fixed patients are right and cured, and the random ones meet the bars."""
    arguments = _arguments()
    session = Session(arguments.folder / _source(), at_once=arguments.at_once, show=show)
    seed = arguments.seed or commits.git("log", "-1", "--format=%H", "--", *RULES)
    chosen = [
        patient
        for patient in PATIENTS
        if not arguments.only or any(word in patient.name for word in arguments.only)
    ]
    fixed = session.run(chosen)
    if arguments.pictures:
        with session.server() as server:
            print(*pictures.take(fixed, server, PICTURES), sep="\n")
        return 0
    fixed = session.cure(chosen, fixed)
    generated = []
    if arguments.drawn:
        patients = drawn.draw(seed, arguments.drawn)
        generated = session.cure(patients, session.run(patients))
    read = session.recommended(chosen)
    show("")
    contradicted = [name for name, each in read.items() if not each.agree]
    examined = report.Examined(fixed, generated, seed, session.seconds, contradicted)
    print(report.tables(examined), *contradicted, sep="\n")
    if not arguments.only:
        report.write(examined)
    return 0 if report.enough(examined) else 1


def _source() -> str:
    """A digest of the code that trains and records. If it changes, all trainings are repeated."""
    here = Path(__file__).parent
    trains = (here / f"{name}.py" for name in TRAINS)
    digest = hashlib.sha256()
    for path in [*trains, *sorted(here.parents[1].glob("ampmon/**/*.py"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m campaigns.clinic", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", help="of those always the same, by parts of their names"
    )
    parser.add_argument(
        "--drawn", type=int, default=drawn.COUNT, help="so many at random (%(default)s)"
    )
    parser.add_argument("--seed", help="of those (default: the commit that holds the rules)")
    parser.add_argument("--at-once", type=int, default=2, help="trainings (%(default)s)")
    parser.add_argument(
        "--pictures", action="store_true", help="only take those of docs/findings/img"
    )
    kept(parser, "clinic")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
