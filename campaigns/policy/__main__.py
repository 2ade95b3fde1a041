"""`make simulate-check`: train every task under every policy, and compare with the simulator.

Results are kept in a folder, so an interrupted check continues where it stopped.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks import machine, report
from campaigns.policy.reruns import RECORDED, SETTINGS, Row, compare, record, rerun
from campaigns.policy.tasks import ALL, OUTLIERS
from campaigns.progress import kept, show


UPDATES = 1000
TITLE = "Simulated and trained: the skips of other policies"
ABOUT = f"""\
Each task is trained in fp16 on the CPU for {UPDATES} updates, once under each of the policies that it is recorded under
(monitored, stored, and read back), and once under each of the others with the same seeds. A row is a simulation of the
recorded run, with the band that it gave, beside the skips of the real training. *known* says whether the band is
narrow enough (3 skips, or 30 % of what is expected); where it is not, the answer is that the run cannot tell.
Of trainings with outliers, single batches overflow at every scale above a low one, and no growth causes that.
"""


def main() -> int:
    """Return the exit code: 0 if every band that is narrow enough contains the trained result."""
    parser = argparse.ArgumentParser(prog="python -m campaigns.policy", description=__doc__)
    kept(parser, "policy")
    parser.add_argument("--only", nargs="*", choices=ALL, default=list(ALL))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows = [row for task in arguments.only for row in check(task, arguments.folder)]
    show("")
    print(_words(rows))
    if set(arguments.only) == set(ALL):
        _write(rows)
    return 0 if all(row.inside for row in rows if row.known) else 1


def check(task: str, folder: Path) -> list[Row]:
    """All simulations of a task beside its trainings. Trainings missing from ``folder`` are run now."""
    real = {}
    for place, (name, setting) in enumerate(SETTINGS.items()):
        held = folder / f"{task.replace(' ', '_')}-{place}.json"
        if not held.exists():
            show(f"{task}: training with {name}")
            held.write_text(json.dumps(rerun(task, setting, UPDATES)))
        real[name] = json.loads(held.read_text())
    rows = []
    for name, policy in RECORDED.items():
        held = folder / f"{task}-{name}.history".replace(" ", "_")
        if not held.exists():
            show(f"{task}: recording ({name})")
            with tempfile.TemporaryDirectory() as work:
                held.write_bytes(pickle.dumps(record(task, UPDATES, Path(work), policy)))
        history = pickle.loads(held.read_bytes())
        rows += compare(task, name, history, real)
    return rows


def _words(rows: list[Row]) -> str:
    outliers = [row for row in rows if row.task in OUTLIERS]
    parts = {
        "All": rows,
        "Of trainings with outliers": outliers,
        "Of the others": [row for row in rows if row not in outliers],
    }
    return "\n".join(f"- {name}: {_counts(some)}" for name, some in parts.items() if some)


def _counts(rows: list[Row]) -> str:
    known = [row for row in rows if row.known]
    inside = sum(row.inside for row in known)
    return (
        f"{len(rows)} simulations: {sum(row.inside for row in rows)} bands hold what was trained. "
        f"{len(known)} are narrow enough to be an answer, of which {inside} hold it."
    )


def _write(rows: list[Row]) -> None:
    figures = {
        "command": "make simulate-check",
        "machine": machine.describe(),
        "updates": UPDATES,
        "rows": [{**asdict(row), "inside": row.inside} for row in rows],
    }
    cells = [{name: _cell(each) for name, each in row.items()} for row in figures["rows"]]
    parts = [f"# {TITLE}", ABOUT.strip(), _words(rows), report.table(cells)]
    text = "\n\n".join(parts) + "\n"
    report.write(report.RESULTS / f"{machine.slug()}-simulate", text, figures)


def _cell(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    sys.exit(main())
