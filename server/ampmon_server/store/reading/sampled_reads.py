"""What a store reads of scalers: their policy, sampled gradients and activations, single parameters and modules."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from ampmon_server.model.case import ScalePolicy
from ampmon_server.model.series import ModuleSample, ParameterSample
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.calls import Calls
from ampmon_server.store.engine.errors import NotFound
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.runs import cases
from ampmon_server.store.samples import modules, parameter_rollups, parameters, samples
from ampmon_server.store.samples.parameter_rollups import ParameterSeries, PartOf, whole
from ampmon_server.store.samples.parameters import ALL, ParameterQuery
from ampmon_server.store.streams import scalers
from ampmon_server.store.updates import axes, rollups


class SampledReads(Calls):
    """Reads of a database, from any thread."""

    def policy(self, run_id: UUID, *, stream: int | None = None) -> ScalePolicy:
        """How a scaler moves its scale and how the script made it. Raises NotFound."""
        with engine.reading(self._engine) as connection:
            return cases.policy_of(connection, scalers.find(connection, run_id, stream))

    def scaler_name(self, run_id: UUID, *, stream: int | None = None) -> str:
        """The name of a stream's scaler, or of the run's first. Raises NotFound."""
        with engine.reading(self._engine) as connection:
            return scalers.find(connection, run_id, stream).name

    def parameter_series(
        self,
        run_id: UUID,
        *,
        stream: int | None = None,
        start: int = 0,
        stop: int = INTEGER_MAX + 1,
        by: Literal["step", "time", "user"] = "step",
        columns: int = 125,
        part_of: PartOf = whole,
    ) -> ParameterSeries:
        """The gradients of each parameter with ``start`` <= x < ``stop``, in enough cells to fill ``columns`` columns.

        Of all parameters and in all fields, or those that ``part_of`` says.

        Where gradients are sharded, those of the stream's own shard; of the lowest rank's, unless a stream is named.
        Raises NotFound.
        """
        with engine.reading(self._engine) as connection:
            scaler = scalers.find(connection, run_id, stream)
            found = axes.find(connection, scaler, start=start, stop=stop, by=by, columns=columns)
            stretch = None if found is None else found[0]
            return parameter_rollups.read(connection, scaler, stream, stretch, columns, part_of)

    def parameters(
        self,
        run_id: UUID,
        *,
        stream: int | None = None,
        step: int = INTEGER_MAX,
        page: ParameterQuery = ALL,
    ) -> parameters.SampledUpdate:
        """The parameters of the newest sample at or before ``step``, those of a page. Raises NotFound."""
        with engine.reading(self._engine) as connection:
            scaler = scalers.find(connection, run_id, stream)
            shards = samples.read_newest(connection, scaler, step)
        return parameters.rows_of(shards, page)

    def parameter_sample(
        self,
        run_id: UUID,
        name: str,
        *,
        stream: int | None = None,
        start: int = 0,
        stop: int = INTEGER_MAX + 1,
        by: Literal["step", "time", "user"] = "step",
    ) -> ParameterSample | None:
        """A parameter at the newest sample with ``start`` <= x < ``stop``, if it is in it.

        Raises NotFound for a run or a stream that is not there.
        """
        with engine.reading(self._engine) as connection:
            scaler = scalers.find(connection, run_id, stream)
            found = axes.find(connection, scaler, start=start, stop=stop, by=by)
            if found is None:
                return None
            first, after = rollups.steps(connection, scaler, found[0])
            try:
                shards = samples.read_newest(connection, scaler, after - 1)
            except NotFound:
                return None
        return parameters.sample_of(shards, name) if shards[0].sample.step >= first else None

    def modules(
        self, run_id: UUID, *, stream: int | None = None, step: int = INTEGER_MAX
    ) -> modules.SampledModules:
        """The modules of the newest sample of activations at or before ``step``. Raises NotFound."""
        sample, _ = self.activations(run_id, stream=stream, stop=step + 1)
        if sample is None:
            raise NotFound(f"No activation that was sampled at or before step {step} is held.")
        return modules.rows_of(sample)

    def activations(
        self,
        run_id: UUID,
        *,
        stream: int | None = None,
        start: int = 0,
        stop: int = INTEGER_MAX + 1,
        by: Literal["step", "time", "user"] = "step",
    ) -> tuple[ModuleSample | None, bool]:
        """The newest sample of activations with ``start`` <= x < ``stop``, and whether the scaler is disabled.

        Raises NotFound for a run or a stream that is not there.
        """
        with engine.reading(self._engine) as connection:
            scaler = scalers.find(connection, run_id, stream)
            found = axes.find(connection, scaler, start=start, stop=stop, by=by)
            if found is None:
                return None, scaler.disabled
            first, after = rollups.steps(connection, scaler, found[0])
            sample = modules.read_newest(connection, scaler, start=first, stop=after)
            return sample, scaler.disabled
