"""Writes runs into MLflow through its client: one experiment per project, one MLflow run per run.

MLflow's databases store a repeated metric once, so a second delivery after a kill adds nothing.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ampmon_server.background.forwarding.forwarder import Rejected
from ampmon_server.store.forwarding import Portion


METRICS_MAX = 1000
"""Metrics per request: MLflow's own limit."""
TAG = "ampmon.run_id"
_SETTINGS = {
    # The forwarder retries with pauses. Retries in MLflow's client would delay a server shutdown.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_STATUS = {None: "RUNNING", "finished": "FINISHED", "crashed": "FAILED"}
_PASSING = {401, 403, 408, 429}
"""4xx statuses that are not about the run."""


class _MlflowPosition(msgspec.Struct):
    """MLflow's id of a run, and the status last set on it."""

    run: str
    status: str


class MLflow:
    """A tracking server or database, named by the URI that MLflow's client accepts."""

    def __init__(self, uri: str) -> None:
        parts = urlsplit(uri)
        place = parts.netloc.rpartition("@")[2]
        self._secret = parts.netloc.removesuffix(place)
        self.key = f"mlflow:{parts._replace(netloc=place).geturl()}"
        self._uri = uri

    def deliver(self, portion: Portion) -> str:
        """See `ForwardDestination.deliver`."""
        from mlflow.exceptions import MlflowException

        try:
            return self._deliver(portion)
        except MlflowException as error:
            # The message contains the request's URL, which may hold a secret.
            reason = str(error).replace(self._secret, "") if self._secret else str(error)
            status: int = error.get_http_status_code()  # type: ignore[no-untyped-call]
            if 400 <= status < 500 and status not in _PASSING:
                raise Rejected(reason) from None
            raise ConnectionError(reason) from None

    def _deliver(self, portion: Portion) -> str:
        if not portion.pieces and not portion.position:
            return ""
        if portion.position:
            at = msgspec.json.decode(portion.position, type=_MlflowPosition)
        else:
            at = _MlflowPosition(self._run(portion), "RUNNING")
        metrics = _metrics(portion)
        while some := list(islice(metrics, METRICS_MAX)):
            self._client.log_batch(at.run, metrics=some, synchronous=True)
        status = _STATUS[portion.ended] if portion.version else at.status
        if status != at.status:
            self._client.update_run(at.run, status=status)
        return msgspec.json.encode(_MlflowPosition(at.run, status)).decode()

    @cached_property
    def _client(self) -> Any:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self._uri)

    def _run(self, portion: Portion) -> str:
        """Return MLflow's id of a run. Reuse the run that a killed server created, or create a new one."""
        known = self._client.get_experiment_by_name(portion.project)
        experiment = (
            known.experiment_id if known else self._client.create_experiment(portion.project)
        )
        mine = f"tags.`{TAG}` = '{portion.run_id}'"
        found = self._client.search_runs([experiment], filter_string=mine, max_results=1)
        run = (
            found[0]
            if found
            else self._client.create_run(
                experiment,
                start_time=portion.started // 1000,
                run_name=portion.name,
                tags={TAG: str(portion.run_id)},
            )
        )
        return str(run.info.run_id)


def _metrics(portion: Portion) -> Iterator[Any]:
    from mlflow.entities import Metric

    for piece in portion.pieces:
        for step, time, values in piece.points:
            for tag, value in values.items():
                yield Metric(_key(tag), value, time // 1000, step)


def _key(tag: str) -> str:
    """Replace the characters of a tag that MLflow forbids, and make it a path without leading dots and slashes."""
    allowed = re.sub(r"[^\w\-. :/]", "_", tag)
    return posixpath.normpath(allowed).lstrip("./")[:250] or "_"
