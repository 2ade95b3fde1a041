"""Implements the store's reads of sampled gradients and activations, by parameter and module, and of policies."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Connection

from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.series import ModuleSample, ParameterSample
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.engine import Calls, reads
from ampmon_server.store.engine.errors import NotFound
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.pages.windows import WHOLE, Stretch
from ampmon_server.store.runs import cases
from ampmon_server.store.samples import modules, parameter_rollups, parameters, samples
from ampmon_server.store.samples.parameter_rollups import ParameterSeries, PartOf, whole
from ampmon_server.store.samples.parameters import ALL, ParameterQuery
from ampmon_server.store.streams import scalers
from ampmon_server.store.streams.scalers import Scaler
from ampmon_server.store.updates import logged, updates
from ampmon_server.store.updates.logged import Axis


def policy(connection: Connection, run_id: UUID, *, stream: int | None = None) -> ScalePolicy:
    """Return the scale policy of a scaler and how the script created it. Raises NotFound."""
    return cases.policy_of(connection, scalers.find(connection, run_id, stream))


def scaler_name(connection: Connection, run_id: UUID, *, stream: int | None = None) -> str:
    """Return the name of a stream's scaler, or of the run's first scaler. Raises NotFound."""
    return scalers.find(connection, run_id, stream).name


def sampled_parameters(
    connection: Connection,
    run_id: UUID,
    *,
    stream: int | None = None,
    step: int = INTEGER_MAX,
    page: ParameterQuery = ALL,
) -> parameters.SampledUpdate:
    """Return a page of the parameters of the newest sample at or before ``step``. Raises NotFound."""
    scaler = scalers.find(connection, run_id, stream)
    return parameters.rows_of(samples.read_newest(connection, scaler, step), page)


def parameter_sample(
    connection: Connection,
    run_id: UUID,
    name: str,
    *,
    stream: int | None = None,
    start: int = 0,
    stop: int = INTEGER_MAX + 1,
    by: Axis = "step",
) -> ParameterSample | None:
    """Return a parameter at the newest sample with ``start`` <= x < ``stop``.

    Return None if there is no such sample or the parameter is not in it. Raises NotFound for an unknown run or stream.
    """
    scaler = scalers.find(connection, run_id, stream)
    first, after = _steps(connection, scaler, start, stop, by)
    try:
        shards = samples.read_newest(connection, scaler, after - 1)
    except NotFound:
        return None
    return parameters.sample_of(shards, name) if shards[0].sample.step >= first else None


def sampled_modules(
    connection: Connection, run_id: UUID, *, stream: int | None = None, step: int = INTEGER_MAX
) -> modules.SampledModules:
    """Return the modules of the newest activation sample at or before ``step``. Raises NotFound."""
    sample, _ = activations(connection, run_id, stream=stream, stop=step + 1)
    if sample is None:
        raise NotFound(f"No activation sample at or before step {step} is stored.")
    return modules.rows_of(sample)


def activations(
    connection: Connection,
    run_id: UUID,
    *,
    stream: int | None = None,
    start: int = 0,
    stop: int = INTEGER_MAX + 1,
    by: Axis = "step",
) -> tuple[ModuleSample | None, bool]:
    """Return the newest activation sample with ``start`` <= x < ``stop``, and whether the scaler is disabled.

    Raises NotFound for an unknown run or stream.
    """
    scaler = scalers.find(connection, run_id, stream)
    first, after = _steps(connection, scaler, start, stop, by)
    sample = modules.read_newest(connection, scaler, start=first, stop=after)
    return sample, scaler.disabled


def _steps(
    connection: Connection, scaler: Scaler, start: int, stop: int, by: Axis
) -> tuple[int, int]:
    """The steps with ``start`` <= x < ``stop``, end excluded; (0, 0) if there are none."""
    found = logged.stretch_of(connection, scaler, start=start, stop=stop, by=by)
    return (0, 0) if found is None else updates.steps(connection, scaler, found[0])


class SampledReads(Calls):
    """Reads of sampled data. Callable from any thread."""

    policy = reads(policy)
    scaler_name = reads(scaler_name)
    parameter_sample = reads(parameter_sample)
    activations = reads(activations)
    parameters = reads(sampled_parameters)
    modules = reads(sampled_modules)

    def parameter_series(
        self,
        run_id: UUID,
        stretch: Stretch | None = WHOLE,
        *,
        stream: int | None = None,
        columns: int = 125,
        part_of: PartOf = whole,
    ) -> ParameterSeries:
        """Return the gradients of each parameter in a stretch, in enough cells to fill ``columns``; none without one.

        ``part_of`` selects parameters and fields; by default all. Of sharded gradients, return the shard of the stream,
        or without a stream, of the lowest rank. Raises NotFound.
        """
        with engine.reading(self._engine) as connection:
            scaler = scalers.find(connection, run_id, stream)
            return parameter_rollups.read(connection, scaler, stream, stretch, columns, part_of)
