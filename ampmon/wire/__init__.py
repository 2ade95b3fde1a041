"""Defines the records that a training process writes to its spool and a server stores. No torch, no I/O.

A spool holds headers and records in the order they happened. A `Batch` carries some of them to the server. Each record
has a ``seq`` in its stream, gapless within an attempt, so a hole is a loss. Times are microseconds since the Unix
epoch, durations microseconds on the monotonic clock. Unknown fields are ignored, so a newer client can talk to an older
server of the same schema version.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec


SCHEMA_VERSION = 1

# Steps and counts pass through JSON and JavaScript, which are exact up to here.
COUNT_MAX = 2**53 - 1
SCALARS_MAX, SCALAR_NAMES_MAX = 1024, 10_000
"""The most values in a record, and names in a stream. Listing the names reads all their cells."""

FREE_BYTES_MAX, FREE_NODES_MAX = 2**20, 100_000
"""Limits of `config` and of an event's `detail`: encoded bytes, and decoded values."""
BASELINE = "baseline"
"""The tag of a run that others are compared with."""
HEADERS_MAX, RECORDS_MAX = 1024, 100_000
"""Limits of a batch. A process has fewer streams than headers, because it sends all headers at once."""

# Control characters (C0, DEL, C1), line and paragraph separators, bidirectional overrides.
_UNPRINTABLE = r"\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069"
# Spaces, format characters and blank letters: printable but invisible.
_BLANK = (
    r" \xa0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u202f\u205f-\u2065\u206a-\u206f"
    r"\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff"
)
PRINTABLE = rf"\A[^{_UNPRINTABLE}]*\Z"
# The same, with a visible character. It has no look-ahead, so that programs can generate text from it.
VISIBLE = rf"\A[{_BLANK}]*[^{_UNPRINTABLE}{_BLANK}][^{_UNPRINTABLE}]*\Z"

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
Time: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=256, pattern=PRINTABLE)]
Label: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=256, pattern=VISIBLE)]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=4096)]
Rank: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**20)]
# In a record, the server checks names: msgspec would take twice as long for an update with these two patterns.
_PRINTABLE = msgspec.Meta(extra_json_schema={"pattern": PRINTABLE})
RecordName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=256), _PRINTABLE]
# The scaler's name; empty for the process itself.
StreamName: TypeAlias = Annotated[str, msgspec.Meta(max_length=128), _PRINTABLE]

NonFinite: TypeAlias = Literal["nan", "inf", "-inf"]
UpdateEvent: TypeAlias = Literal["steady", "grow", "grow_capped", "backoff", "manual_set", "dead"]
StepPath: TypeAlias = Literal["plain", "unscaled", "fused"]
Layout: TypeAlias = Literal["replicated", "sharded"]
BackwardOrder: TypeAlias = Literal["learned", "assumed"]
LeftOut: TypeAlias = Literal["compiled", "scripted"]
LossState: TypeAlias = Literal["finite", "overflowed", "not_finite"]
ForwardOrigin: TypeAlias = Literal["input", "forward", "loss"]
Severity: TypeAlias = Literal["notice", "warning", "critical"]


# gc=False: structs form no cycles, so Python's garbage collector need not visit them.
class AttemptHeader(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="attempt"
):
    """One process start on one rank, and the run that it belongs to.

    ``resume_step`` is the step of the attempt's first update, or None to continue where the last attempt ended.
    """

    run_id: UUID
    attempt_id: UUID
    project: Label
    name: Label
    owner: Label
    started: Time
    rank: Rank = 0
    world_size: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 1
    host: Name = "unknown"
    pid: Count = 0
    boot_id: Annotated[str, msgspec.Meta(max_length=64, pattern=PRINTABLE)] = ""
    resume_step: Count | None = None
    tags: Annotated[tuple[Label, ...], msgspec.Meta(max_length=64)] = ()
    config: dict[str, Any] = {}
    versions: Annotated[dict[Name, Name], msgspec.Meta(max_length=1024)] = {}
    git_commit: Annotated[str, msgspec.Meta(max_length=64, pattern=PRINTABLE)] = ""


class Parameter(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One parameter of a stream. Records refer to it by its index in the header."""

    name: Name
    shape: Annotated[tuple[Count, ...], msgspec.Meta(max_length=64)]  # torch's limit
    dtype: Name

    @property
    def numel(self) -> int:
        """The number of elements. If it exceeds `COUNT_MAX`, some number above that."""
        product = int(0 not in self.shape)
        for size in self.shape:
            product *= size
            if product > COUNT_MAX:  # the full product of many sizes may take hours
                break
        return product


class Module(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One module of the stream's model. Records refer to it by its index in the header.

    ``left_out`` says why it and its submodules are not measured, if they are not.
    """

    name: Name
    kind: Name  # its class
    left_out: LeftOut | None = None


class ScalerCall(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The script's call that created a scaler: its arguments other than defaults, by name, as code.

    ``watched``: the call is inside `ampmon.watch(...)`.
    """

    arguments: Annotated[dict[Name, Name], msgspec.Meta(max_length=64)] = {}
    watched: bool = False


class StreamHeader(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="stream"
):
    """One scaler of the attempt. Sent again with new parameters or modules, which join at the lists' ends.

    A parameter's ``shape`` is that of the local gradient: the shard, if gradients are sharded. ``sample`` is the number
    of elements measured per tensor, or None if all are. ``budget`` is the share of training time that the monitor may
    take, or None if it samples at a fixed interval. ``call`` is how the script created the scaler, or None if that is
    unknown.
    """

    stream: Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=PRINTABLE)]
    layout: Layout = "replicated"
    scaler: Name
    device: Name
    enabled: bool = True
    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: Count = 2000
    sample: Count | None = None
    budget: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    call: ScalerCall | None = None
    parameters: Annotated[tuple[Parameter, ...], msgspec.Meta(max_length=200_000)] = ()
    modules: Annotated[tuple[Module, ...], msgspec.Meta(max_length=200_000)] = ()


class Culprit(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A parameter whose gradient was not finite. ``inf`` and ``nan`` count elements; None if not counted."""

    parameter: Count
    inf: Count | None
    nan: Count | None


class OptimizerStep(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The outcome of one optimizer's `step` in an update.

    ``culprits`` are in backward order, the first to overflow first. ``culprit_order`` says whether that order was
    learned from the backward pass or assumed to be the reverse of the parameters'. The list may be cut short:
    ``culprit_parameters`` is the full number.
    """

    optimizer: RecordName
    path: StepPath
    skipped: bool = False
    culprits: Annotated[tuple[Culprit, ...], msgspec.Meta(max_length=256)] = ()
    culprit_order: BackwardOrder = "assumed"
    culprit_parameters: Count = 0


class Gradients(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Statistics of the scaled gradients of n parameters, as little-endian arrays.

    ``parameters`` are indices into the stream's header. ``looked`` counts the measured elements. They are not finite
    (``inf`` + ``nan``), ``zeros``, or in the histogram's 64 bins. ``on_grid`` of them equal their own fp16 rounding.
    ``amax`` and ``sum_squares`` may be infinite or NaN, and cover only the measured elements.

    ``run_squares`` says how the runs of 16 elements in a sample differ. Three sums over the runs: the squared number of
    a run's elements that are zero, below fp16's grid, and subnormal. 0 if every element was measured, or unknown.
    """

    parameters: bytes  # <i4 [n]
    looked: bytes  # <i8 [n]
    zeros: bytes  # <i8 [n]
    on_grid: bytes  # <i8 [n]
    inf: bytes  # <i8 [n]
    nan: bytes  # <i8 [n]
    amax: bytes  # <f8 [n]
    sum_squares: bytes  # <f8 [n]
    histogram: bytes  # <i8 [n, 64]
    run_squares: bytes = b""  # <i8 [n, 3]; empty: all 0


class Activations(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What passed through n modules in one update: their outputs, and the fp16 gradients that came back.

    ``gradients`` are statistics of those gradients, still scaled, of all micro-batches together. Its ``parameters`` are
    indices into the header's modules, in the order in which the forward pass left them. ``elements`` counts the
    gradients' elements, 0 if no fp16 gradient came back. ``forward`` is the largest magnitude of the outputs, maybe
    infinite or NaN.
    """

    gradients: Gradients
    elements: bytes  # <i8 [n]
    forward: bytes  # <f8 [n]


class Update(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="update"):
    """One `scaler.update()` after at least one `scaler.step()`.

    ``ordinal`` counts the stream's updates in this attempt from 0, so if no seq is missing, no ordinal is. The server
    adds the attempt's origin to get the step. ``scale`` was in force during the iteration; ``scale_after`` is the one
    update() left. ``duration`` is the time since the previous update, None for the first. ``cost`` is the monitor's
    part of it on the training thread, and on devices for this and earlier updates, as far as known. A sampled update
    has ``interval``, the updates between samples from then on; ``over_budget`` says that even this exceeds the budget.
    ``fresh`` marks a stream's first update, if the scaler was created in this process and was given no state since.
    ``scheduled`` marks the update after a skipped one, if the learning rate changed in between.

    In a skipped update, ``loss`` says whether all inputs of `scale()` were finite and, if so, whether a product with
    the scale ``overflowed``. If the loss was not finite and modules were watched, ``origin`` says where that began: in
    the model's ``input``; in the ``forward`` of ``origin_module``, the first module whose input was finite and whose
    output was not; or in the ``loss``, computed from finite outputs.
    """

    stream: StreamName
    seq: Count
    ordinal: Count
    time: Time
    scale: float
    scale_after: float
    growth_tracker: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
    event: UpdateEvent
    optimizers: Annotated[tuple[OptimizerStep, ...], msgspec.Meta(min_length=1, max_length=4096)]
    duration: Annotated[float, msgspec.Meta(ge=0)] | None = None
    cost: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    interval: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)] | None = None
    over_budget: bool = False
    fresh: bool = False
    scheduled: bool = False
    memory_peak: Count | None = None  # bytes on the device
    gradients: Gradients | None = None
    activations: Activations | None = None
    loss: LossState | None = None
    origin: ForwardOrigin | None = None
    origin_module: Count | None = None


class Event(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="event"):
    """An event other than an update: init, finish, state_loaded, manual_set, disabled, error, dropped, ...

    ``ordinal`` is the update that it came before, if any. Only the server writes the kind `resume`.
    """

    stream: StreamName
    seq: Count
    time: Time
    kind: Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"\A[a-z][a-z0-9_]*\Z")]
    ordinal: Count | None = None
    detail: dict[str, Any] = {}


class Scalars(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="scalars"
):
    """The values given to `ampmon.log` for an update. One that JSON cannot hold is null, with its kind beside it."""

    stream: StreamName
    seq: Count
    ordinal: Count
    time: Time
    values: Annotated[dict[RecordName, float | None], msgspec.Meta(max_length=SCALARS_MAX)]
    kinds: Annotated[dict[RecordName, NonFinite], msgspec.Meta(max_length=SCALARS_MAX)] = {}
    user_step: Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)] | None = None


Header: TypeAlias = AttemptHeader | StreamHeader
Record: TypeAlias = Update | Event | Scalars


def without_samples(record: Header | Record) -> Update | None:
    """Return an update without its samples, for want of room, or None for a record that has none."""
    if isinstance(record, Update) and (record.gradients or record.activations):
        return msgspec.structs.replace(record, gradients=None, activations=None)
    return None


class Batch(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One request: records of one attempt, and the headers that the server may not have yet.

    ``ended``: the sender found that the process is gone, without an event that says so. ``alive``: it has just seen the
    process running, with its spool open.
    """

    schema_version: int
    run_id: UUID
    attempt_id: UUID
    headers: Annotated[tuple[Header, ...], msgspec.Meta(max_length=HEADERS_MAX)] = ()
    records: Annotated[tuple[Record, ...], msgspec.Meta(max_length=RECORDS_MAX)] = ()
    ended: Literal["crashed"] | None = None
    alive: bool = False


class RawBatch(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A `Batch` with headers and records still encoded. The server decodes them one by one."""

    schema_version: int
    run_id: UUID
    attempt_id: UUID
    headers: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=HEADERS_MAX)] = ()
    records: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=RECORDS_MAX)] = ()
    ended: Literal["crashed"] | None = None
    alive: bool = False


class Finding(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What is wrong with a run, why, and what to change.

    ``rule`` names its page in docs/findings/. ``title`` is one sentence with its numbers. ``explanation`` says what
    that means to a newcomer. ``fix`` is the code to write instead, or empty. A finding about certain steps holds from
    ``first_step`` to ``last_step``, both included. ``parameters`` are the affected parameters or modules, the worst
    first. ``evidence`` are the numbers behind it; ``figure`` is the chart that shows it. ``stop`` says that the run
    cannot recover: what it trains is destroyed or stands still. ``setting`` are the scaler's rules that the fix
    changes, by name. ``second`` says why the fix is an alternative. A run has one recommendation: the fix of the first
    finding that has a fix and no ``second``.
    """

    rule: str
    severity: Severity
    title: str
    explanation: str
    fix: str = ""
    scaler: str = ""
    first_step: int | None = None
    last_step: int | None = None
    parameters: tuple[str, ...] = ()
    evidence: dict[str, float | int | str | None] = {}
    figure: str = ""
    stop: bool = False
    setting: dict[str, float] = {}
    second: str = ""


class Ack(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The server's answer after commit: the last seq it has of each stream in the batch, and the run's version.

    ``findings`` are the run's newest findings, the worst first, or None if there was no diagnosis yet. Each is a
    `Finding` as plain data, because a newer server's may differ. ``request`` is the time of the newest request for a
    measurement that is still to be made. ``watched`` is False while no page is open: the sender then sends less often.
    """

    acked: dict[str, int]
    version: int = 0
    findings: tuple[dict[str, Any], ...] | None = None
    request: Time | None = None
    watched: bool = True


_encoder = msgspec.msgpack.Encoder()
_frame_decoder = msgspec.msgpack.Decoder(AttemptHeader | StreamHeader | Update | Event | Scalars)


def encode(message: Header | Record | Batch | RawBatch) -> bytes:
    """Return the msgpack bytes of a header, a record or a batch."""
    return _encoder.encode(message)


def decode(payload: bytes) -> Header | Record:
    """Return the header or record that `encode` wrote. Raises msgspec.ValidationError, which names the field."""
    message: Header | Record = _frame_decoder.decode(payload)
    return message


def nodes(value: object) -> int:
    """Count the values in plain data, itself included. Stops just beyond `FREE_NODES_MAX`."""
    count, rest = 0, [value]
    while rest and count <= FREE_NODES_MAX:
        each = rest.pop()
        count += 1
        if isinstance(each, dict):
            rest += each.values()
        elif isinstance(each, (list, tuple)):
            rest += each
    return count
