"""The clinic at work: patients trained beside each other, then judged. Keeps who was trained in a folder."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from browser import chromium
from campaigns.clinic.patient import Patient
from campaigns.clinic.verdict import Verdict, verdict
from campaigns.clinic.ward import Ward
from campaigns.soak.nursery import Nursery
from threaded_server import ThreadedServer


if TYPE_CHECKING:
    from campaigns.clinic.recommended import Recommendations

SILENT_WITHIN_S = 120.0
Show = Callable[[str], None]


class _Trained(msgspec.Struct, frozen=True):
    training: str
    run_id: str
    seconds: float


class Session:
    """Goes on from what ``folder`` holds. ``show`` is told in a line how far it is."""

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
        """How long they were trained, those beside each other added up."""
        return sum(each.seconds for each in self._trained.values())

    def run(self, patients: Sequence[Patient]) -> list[Verdict]:
        """Train those that were not, and judge all. Blocks. Raises RuntimeError where one cannot be trained."""
        with self.server() as server:
            waiting = [patient for patient in patients if patient.training not in self._trained]
            if waiting:
                self._train(waiting, server)
            # A run is silent only after a while.
            order = sorted(patients, key=lambda patient: patient.ends == "hung")
            judged = {patient.name: self._judge(patient, server) for patient in order}
        return [judged[patient.name] for patient in patients]

    def recommended(self, patients: Sequence[Patient]) -> dict[str, Recommendations]:
        """What page, report and doctor recommend for the trained ones, by their names. Blocks."""
        from campaigns.clinic.recommended import Reading

        found = {}
        with self.server() as server, chromium() as browser:
            reading = Reading(server, browser.new_page())
            for number, patient in enumerate(patients):
                self._show(f"{number + 1} of {len(patients)} read")
                found[patient.name] = reading.of(self._trained[patient.training].run_id)
        return found

    @contextlib.contextmanager
    def server(self) -> Iterator[ThreadedServer]:
        """The server that has all the runs."""
        server = ThreadedServer(self._folder / "server")
        try:
            yield server
        finally:
            server.close()

    # -- training -------------------------------------------------------------------------------------------------

    def _train(self, patients: Sequence[Patient], server: ThreadedServer) -> None:
        with contextlib.closing(Nursery("campaigns.clinic.ward:warm")) as nursery:
            nursery.wait()
            ward = Ward(nursery, server, self._folder / "ward")
            with ThreadPoolExecutor(self._at_once) as pool:
                tasks = [pool.submit(self._one, ward, patient) for patient in patients]
                try:
                    for number, task in enumerate(tasks):
                        task.result()
                        self._show(f"{number + 1} of {len(tasks)} trained")
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise

    def _one(self, ward: Ward, patient: Patient) -> None:
        treated = ward.treat(patient)
        trained = _Trained(patient.training, treated.run_id, treated.seconds)
        with self._lock, self._file.open("ab") as file:
            file.write(msgspec.json.encode(trained) + b"\n")
            self._trained[patient.training] = trained

    # -- judging --------------------------------------------------------------------------------------------------

    def _judge(self, patient: Patient, server: ThreadedServer) -> Verdict:
        run_id = self._trained[patient.training].run_id
        if patient.ends == "hung":
            self._wait_until_silent(run_id, server)
        return verdict(patient, run_id, _ask(server, f"/api/v1/runs/{run_id}/diagnosis"))

    def _wait_until_silent(self, run_id: str, server: ThreadedServer) -> None:
        end = time.monotonic() + SILENT_WITHIN_S
        while _ask(server, f"/api/v1/runs/{run_id}")["status"] != "silent":
            if time.monotonic() > end:
                raise RuntimeError(f"{run_id} is not silent after {SILENT_WITHIN_S:.0f} s")
            self._show("waiting until the one that hangs counts as silent")
            time.sleep(2.0)


def _ask(server: ThreadedServer, path: str) -> dict[str, Any]:
    token = (server.directory / "token").read_text().strip()
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found
