"""Stores everything, and is the only place with SQL. Does not depend on HTTP or figures."""

from __future__ import annotations

from ampmon_server.store.access import Token
from ampmon_server.store.admin.derived import Defect
from ampmon_server.store.admin.distributing import Distribution
from ampmon_server.store.admin.prune import Failures, Keep, PruneSize, PruneTask
from ampmon_server.store.admin.pruning import Pruning
from ampmon_server.store.admin.verify import Verification
from ampmon_server.store.alerts.alerts import Judgement, Kept
from ampmon_server.store.alerts.mutes import Mute
from ampmon_server.store.alerts.outbox import DeliveryState
from ampmon_server.store.engine.errors import (
    BadBatch,
    BadQuery,
    Busy,
    NameTaken,
    NotFound,
    StoreError,
    UnknownHeader,
    Unreadable,
    Unusable,
)
from ampmon_server.store.engine.opening import upgrade
from ampmon_server.store.ingest.ingest import ANYONE, Outcome, Receipt, Sender
from ampmon_server.store.reading.alarms import RunAlerts
from ampmon_server.store.runs.listing import Sort, Wanted
from ampmon_server.store.runs.runs import Edit, Status, Summary
from ampmon_server.store.samples.parameter_rollups import ParameterPart
from ampmon_server.store.samples.parameters import SORTS as PARAMETER_SORTS
from ampmon_server.store.samples.parameters import ParameterQuery
from ampmon_server.store.store import Store
from ampmon_server.store.streams.state import Advance


__all__ = [
    "ANYONE",
    "PARAMETER_SORTS",
    "Advance",
    "BadBatch",
    "BadQuery",
    "Busy",
    "Defect",
    "DeliveryState",
    "Distribution",
    "Edit",
    "Failures",
    "Judgement",
    "Keep",
    "Kept",
    "Mute",
    "NameTaken",
    "NotFound",
    "Outcome",
    "ParameterPart",
    "ParameterQuery",
    "PruneSize",
    "PruneTask",
    "Pruning",
    "Receipt",
    "RunAlerts",
    "Sender",
    "Sort",
    "Status",
    "Store",
    "StoreError",
    "Summary",
    "Token",
    "UnknownHeader",
    "Unreadable",
    "Unusable",
    "Verification",
    "Wanted",
    "upgrade",
]
