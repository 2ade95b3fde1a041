"""Definitions of numbers and states that the page shows. Charts and statistics have their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Term(NamedTuple):
    """``section`` is the anchor of the explanation in docs/measures.md."""

    definition: str
    section: str


TERMS: Mapping[str, Term] = {
    "scale": Term(
        "The current factor on the loss. It keeps small gradients from being lost in fp16.",
        "at-every-update",
    ),
    "skipped": Term(
        "Steps in which an optimizer on any rank found inf or NaN and did not change its weights. A step counts once, "
        "not once per rank.",
        "at-every-update",
    ),
    "underflow": Term(
        "Shares of gradient elements in the newest sample. Subnormal: below 2⁻¹⁴, where fp16 has fewer bits. Zero: "
        "flushed by fp16, or zero in any format. fp16-representable parameters only.",
        "the-classes",
    ),
    "headroom": Term(
        "Bits between the largest scaled gradient and 65 504, fp16's largest number. An upper bound: activation "
        "gradients overflow first.",
        "derived",
    ),
    "records": Term(
        "Records stored, out of those that the training processes numbered. A gap in the numbers is a lost record.",
        "about-ampmon-itself",
    ),
    "sampled": Term(
        "Steps whose gradients were measured. The monitor spaces them to keep its overhead inside the budget. It "
        "samples at least one step in 128, and after each change of the loss scale.",
        "when-sampled",
    ),
    "overhead": Term(
        "Share of training time that monitoring takes on the training thread and on the device, as the monitor "
        "measures it.",
        "about-ampmon-itself",
    ),
    "newest": Term(
        "Time of the newest step, by the training machine's clock.",
        "at-every-update",
    ),
    "ranks": Term(
        "Processes that train together, and how many times they were started.",
        "about-ampmon-itself",
    ),
    "parameter": Term(
        "The parameter's name in the model. Sorting by this column uses the model's order.",
        "when-sampled",
    ),
    "lost": Term(
        "How many of its elements overflowed to inf, and how many are NaN.",
        "the-classes",
    ),
    "culprit": Term(
        "Number of skipped optimizer steps in which this parameter is named as a culprit: its gradient held inf or "
        "NaN.",
        "on-every-skip",
    ),
}

IN_TABLE: Mapping[str, str] = {
    "subnormal": "Share of its scaled gradient's elements from 2⁻²⁴ to 2⁻¹⁴: the smaller they are, the fewer bits fp16 "
    "has for them.",
    "on_grid": "Whether fp16 holds at least 99 % of its elements exactly. If not, its gradient was computed in fp32, "
    "so its small elements do not show underflow in fp16.",
}
"""What the table of parameters says of a statistic whose cells differ from its values."""

STATUSES = {
    "running": ("●", "The server is receiving steps."),
    "finished": ("✓", "The training process ended normally."),
    "crashed": ("✕", "The process exited unexpectedly."),
    "silent": ("◌", "No step for longer than usual, and the process has not reported its end."),
}
"""A sign and a meaning."""

SEVERITIES = {"healthy": "✓", "notice": "○", "warning": "▲", "critical": "■"}

SCOPES = {
    "read": "See runs, charts and this page",
    "ingest": "Send records; rename, archive and delete your own runs",
    "admin": "Change all runs, and create tokens",
}

SETTINGS = {
    "init_scale": "initial loss scale",
    "growth_factor": "factor of each growth",
    "backoff_factor": "factor of each back-off after an overflow",
    "growth_interval": "steps without an overflow before the scale grows",
}
"""What a policy's settings are."""
