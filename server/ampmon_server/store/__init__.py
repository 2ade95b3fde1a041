"""Everything that is stored: the one place with SQL. Knows neither HTTP nor figures."""

from __future__ import annotations

from ampmon_server.store.alarms import Standings
from ampmon_server.store.changes import Change
from ampmon_server.store.checks.finding import Finding
from ampmon_server.store.distributing import Distribution
from ampmon_server.store.errors import (
    BadBatch,
    BadQuery,
    Busy,
    HeaderMissing,
    NameTaken,
    NotFound,
    StoreError,
    Unusable,
)
from ampmon_server.store.forwarding import Behind, Piece, Point, Portion
from ampmon_server.store.identity import Identity
from ampmon_server.store.ingest import ANYONE, Receipt, Sender
from ampmon_server.store.judgements import Judgement, Kept
from ampmon_server.store.listing import Groups, Listed, Sort, Wanted
from ampmon_server.store.mutes import Mute
from ampmon_server.store.opening import upgrade
from ampmon_server.store.outbox import Delivery, Taken
from ampmon_server.store.paging import Paged
from ampmon_server.store.parameter_rollups import ParameterSeries
from ampmon_server.store.parameters import Page as ParameterPage
from ampmon_server.store.parameters import Sort as ParameterSort
from ampmon_server.store.prune import Due, Failures, Keep, Size
from ampmon_server.store.pruning import Pruning
from ampmon_server.store.runs import Belonging, Edit, Status, Summary
from ampmon_server.store.store import Series, Store
from ampmon_server.store.together import Outcome
from ampmon_server.store.tokens import Token
from ampmon_server.store.verify import Verification
from ampmon_server.store.windows import Stretch


__all__ = [
    "ANYONE",
    "BadBatch",
    "BadQuery",
    "Behind",
    "Belonging",
    "Busy",
    "Change",
    "Delivery",
    "Distribution",
    "Due",
    "Edit",
    "Failures",
    "Finding",
    "Groups",
    "HeaderMissing",
    "Identity",
    "Judgement",
    "Keep",
    "Kept",
    "Listed",
    "Mute",
    "NameTaken",
    "NotFound",
    "Outcome",
    "Paged",
    "ParameterPage",
    "ParameterSeries",
    "ParameterSort",
    "Piece",
    "Point",
    "Portion",
    "Pruning",
    "Receipt",
    "Sender",
    "Series",
    "Size",
    "Sort",
    "Standings",
    "Status",
    "Store",
    "StoreError",
    "Stretch",
    "Summary",
    "Taken",
    "Token",
    "Unusable",
    "Verification",
    "Wanted",
    "upgrade",
]
