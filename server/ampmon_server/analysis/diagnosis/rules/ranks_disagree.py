"""Finds ranks whose scale or skips differ at the same step, so that their weights drift apart."""

from __future__ import annotations

import numpy as np

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.rules.parts import each_scaler
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.series import Ints
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count, plural


EXPLANATION = (
    "All ranks must skip the same steps and hold the same scale: if one rank steps and another does not, their "
    "weights differ from then on. {why}"
)
SHARDED = (
    "Gradients are sharded, so only the rank with an overflow sees it, unless the scaler asks the others. Or each "
    "rank creates or restores its own scaler."
)
REPLICATED = (
    "Each rank holds the whole model, so all ranks see the same overflow if gradients are averaged before the check. "
    "Here they are not averaged, or each rank creates or restores its own scaler."
)
FIX = (
    "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n"
    "scaler = ampmon.watch(ShardedGradScaler(), model=model)  # asks all ranks before it skips; not with fused=True"
)
AVERAGED = (
    "# Wrap the model once, and call the wrapper. Run the last backward pass of a step outside no_sync():\n"
    "model = torch.nn.parallel.DistributedDataParallel(model)"
)


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Return a critical finding if any of the newest updates differs between ranks."""
    ranks = sorted(scaler.ranks)
    if len(ranks) < 2:
        return None
    base = scaler.ranks[ranks[0]]
    differ = {rank: _differ(base, scaler.ranks[rank]) for rank in ranks[1:]}
    odd = {rank: steps for rank, steps in differ.items() if len(steps)}
    if not odd:
        return None
    first = min(int(steps[0]) for steps in odd.values())
    last = max(int(steps[-1]) for steps in odd.values())
    times = max(len(steps) for steps in odd.values())
    rank = min(odd, key=lambda each: int(odd[each][0]))
    sharded = scaler.policy.layout == "sharded"
    return Finding(
        rule="ranks_disagree",
        severity="critical",
        title=f"Ranks {ranks[0]} and {rank} disagree on scale or skip at {plural(times, 'step')}, first at step "
        f"{count(first)}",
        explanation=EXPLANATION.format(why=SHARDED if sharded else REPLICATED),
        fix=FIX if sharded else AVERAGED,
        first_step=first,
        last_step=last,
        evidence={"updates": times, "ranks": len(odd) + 1},
        figure="ranks",
        stop=True,
    )


def _differ(one: Cells, other: Cells) -> Ints:
    """The common steps at which scale or skip differ. Only cells of a single update can be compared."""
    one, other = (cells[cells["n"] == 1] for cells in (one, other))
    both, at, beside = np.intersect1d(one["first"], other["first"], return_indices=True)
    scales = one["scale_first"][at], other["scale_first"][beside]
    same_scale = (scales[0] == scales[1]) | (np.isnan(scales[0]) & np.isnan(scales[1]))
    same_skip = (one["skipped"][at] > 0) == (other["skipped"][beside] > 0)
    found: Ints = both[~(same_scale & same_skip)]
    return found
