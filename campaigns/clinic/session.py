"""Trains patients in parallel and judges them. Keeps the finished trainings in a folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from browser import chromium
from campaigns.clinic.patient import Patient
from campaigns.clinic.verdict import SEEDS, Cure, Verdict, verdict
from campaigns.clinic.ward import Ward, Way
from threaded_server import ThreadedServer
from waiting import wait_for


if TYPE_CHECKING:
    from campaigns.clinic.recommended import Recommendations

SILENT_WITHIN_S = 120.0
Show = Callable[[str], None]


class _Trained(msgspec.Struct, frozen=True):
    """``run_id`` is empty if nothing was recorded."""

    training: str
    run_id: str
    seconds: float
    loss: float | None = None


class _Order(NamedTuple):
    """A training that is needed of a patient."""

    patient: Patient
    way: Way = "sick"
    fix: str = ""
    skipped: tuple[int, ...] = ()
    further: int = 0
    """The number of the seed. 0 is the patient's own."""

    @property
    def training(self) -> str:
        """A key of everything it depends on, except the code."""
        how = "" if self.way == "sick" else f", {self.way} {self.skipped} {self.fix}"
        seed = f", seed {self.further}" if self.further else ""
        return self.patient.training + how + seed


class Session:
    """Continues from the trainings in ``folder``. ``show`` gets each line of progress."""

    def __init__(self, folder: Path, *, at_once: int = 2, show: Show = lambda _: None) -> None:
        self._folder, self._at_once, self._show = folder, at_once, show
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = folder / "trained.jsonl"
        lines = self._file.read_bytes().splitlines() if self._file.exists() else []
        done = [msgspec.json.decode(line, type=_Trained) for line in lines]
        self._trained = {each.training: each for each in done}
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Total training time; parallel trainings add up."""
        return sum(each.seconds for each in self._trained.values())

    def run(self, patients: Sequence[Patient]) -> list[Verdict]:
        """Train the patients that have no training yet, and judge all. Blocks. Raises RuntimeError if one fails."""
        with self.server() as server:
            self._train([_Order(patient) for patient in patients], server)
            # A run counts as silent only after a while.
            order = sorted(patients, key=lambda patient: patient.ends == "hung")
            judged = {patient.name: self._judge(patient, server) for patient in order}
        return [judged[patient.name] for patient in patients]

    def cure(self, patients: Sequence[Patient], verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Train the curable patients with their recommended code, and judge the result. Blocks."""
        orders = {
            patient.name: _Order(patient, "cured", found.fix)
            for patient, found in zip(patients, verdicts, strict=True)
            if patient.sick and not patient.incurable and found.fix
        }
        with self.server() as server:
            cures = dict(zip(orders, self._cures([*orders.values()], server), strict=True))
            doubtful = {
                name: [orders[name]._replace(further=seed) for seed in range(1, SEEDS)]
                for name, cure in cures.items()
                if cure.finite and not cure.left and not cure.near
            }
            again = iter(
                self._cures([each for seeds in doubtful.values() for each in seeds], server)
            )
            for name, seeds in doubtful.items():
                pairs = tuple(next(again).pairs[0] for _ in seeds)
                cures[name] = msgspec.structs.replace(cures[name], again=pairs)
        return [msgspec.structs.replace(found, cure=cures.get(found.patient)) for found in verdicts]

    def recommended(self, patients: Sequence[Patient]) -> dict[str, Recommendations]:
        """What page, report and doctor recommend for trained patients, by name. Blocks."""
        from campaigns.clinic.recommended import Reading

        found = {}
        with self.server() as server, chromium() as browser:
            reading = Reading(server, browser.new_page())
            for number, patient in enumerate(patients):
                self._show(f"{number + 1} of {len(patients)} read")
                found[patient.name] = reading.of(self._trained[patient.training].run_id)
        return found

    def server(self) -> closing[ThreadedServer]:
        """The server with all the runs."""
        return closing(ThreadedServer(self._folder / "server"))

    # -- training -------------------------------------------------------------------------------------------------

    def _train(self, orders: Sequence[_Order], server: ThreadedServer) -> None:
        waiting = [order for order in orders if order.training not in self._trained]
        if not waiting:
            return
        ward = Ward(server, self._folder / "ward")
        with ThreadPoolExecutor(self._at_once) as pool:
            tasks = [pool.submit(self._one, ward, order) for order in waiting]
            try:
                for number, task in enumerate(tasks):
                    task.result()
                    self._show(f"{number + 1} of {len(tasks)} trained")
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _one(self, ward: Ward, order: _Order) -> None:
        try:
            treated = ward.treat(*order)
            trained = _Trained(order.training, treated.run_id, treated.seconds, treated.loss)
        except RuntimeError:
            if order.way != "cured":
                raise
            trained = _Trained(order.training, "", 0.0)  # the code ended it at once
        with self._lock, self._file.open("ab") as file:
            file.write(msgspec.json.encode(trained) + b"\n")
            self._trained[order.training] = trained

    # -- judging --------------------------------------------------------------------------------------------------

    def _judge(self, patient: Patient, server: ThreadedServer) -> Verdict:
        run_id = self._trained[patient.training].run_id
        if patient.ends == "hung":
            self._show("waiting until the one that hangs counts as silent")
            wait_for(
                lambda: server.get(f"/runs/{run_id}")["status"] == "silent",
                f"for {run_id} to fall silent",
                SILENT_WITHIN_S,
            )
        return verdict(patient, run_id, server.get(f"/runs/{run_id}/diagnosis"))

    def _cures(self, orders: Sequence[_Order], server: ThreadedServer) -> list[Cure]:
        """Train with the code, then the twins without the skipped updates, and judge the results."""
        self._train(orders, server)
        twins = [
            order._replace(way="twin", fix="", skipped=self._skipped(order, server))
            if len(order.patient.attempts) == 1
            else None
            for order in orders
        ]
        self._train([twin for twin in twins if twin], server)
        return [self._cure(order, twin, server) for order, twin in zip(orders, twins, strict=True)]

    def _skipped(self, order: _Order, server: ThreadedServer) -> tuple[int, ...]:
        run_id = self._trained[order.training].run_id
        found = server.get(f"/runs/{run_id}/skips?limit=1000")["skips"] if run_id else ()
        return tuple(sorted({each["step"] for each in found}))

    def _cure(self, order: _Order, twin: _Order | None, server: ThreadedServer) -> Cure:
        trained = self._trained[order.training]
        if not trained.run_id:
            return Cure()
        found = server.get(f"/runs/{trained.run_id}/diagnosis")["findings"]
        return Cure(
            run_id=trained.run_id,
            left=tuple(
                each["rule"]
                for each in found
                if each["rule"] in order.patient.rules or each["severity"] != "notice"
            ),
            loss=trained.loss,
            twin=self._trained[twin.training].loss if twin else None,
        )
