"""The gallery's exhibits, and the text of docs/gallery.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """A patient of the clinic. ``rule`` must be its first finding; ``look`` is one sentence of Markdown.

    ``figure`` is the chart in its picture; None means the table of skipped steps.
    """

    patient: str
    title: str
    rule: str
    figure: str | None
    look: str

    @property
    def name(self) -> str:
        """The stem of its file names."""
        return self.title.lower().replace(" ", "-").replace("'", "")


EXHIBITS = (
    Exhibit(
        patient="dead scale",
        title="Loss scale collapse",
        rule="dead_scale",
        figure="scale",
        look="Every step is skipped, so the scale halves in a straight line; the crosses are steps at a dead scale, "
        "whose inverse is infinite.",
    ),
    Exhibit(
        patient="growth too eager",
        title="Growth interval too short",
        rule="sawtooth",
        figure="scale",
        look="Growths and back-offs alternate: every three steps the scale tries a larger value, overflows and loses "
        "the step.",
    ),
    Exhibit(
        patient="heavy batches",
        title="Outlier batches",
        rule="skip_rate",
        figure="scalars",
        look="The loss jumps a thousandfold in single steps, and the chart above it shows a skip in each of them.",
    ),
    Exhibit(
        patient="NaN in every tenth batch",
        title="NaN in the data",
        rule="nan_not_overflow",
        figure="scalars",
        look="The loss itself is NaN in every tenth step (the crosses), so the input is at fault and no scale helps.",
    ),
    Exhibit(
        patient="overflow in a norm",
        title="Overflow in the forward pass",
        rule="forward_overflow",
        figure="scale",
        look="The scale falls with every skip and nothing improves: the overflow began in the module `norm` in the "
        "forward pass, which no loss scale changes.",
    ),
    Exhibit(
        patient="culprit layer",
        title="One layer that overflows",
        rule="culprit_layer",
        figure=None,
        look="The column *First to overflow* names `head.weight` in every skip, and no layer that comes after it in "
        "the backward pass.",
    ),
    Exhibit(
        patient="static scale far too low",
        title="Gradient underflow",
        rule="subnormal",
        figure="exponents",
        look="Nearly all magnitudes above zero are in the hatched range, where fp16 keeps only some bits, and the wide "
        "range above them is empty.",
    ),
    Exhibit(
        patient="one small layer",
        title="One layer that underflows",
        rule="subnormal_parameter",
        figure="parameters",
        look="Only the rows of the adapter are filled: its gradients are too small for a scale that fits all other "
        "layers.",
    ),
    Exhibit(
        patient="scaler not restored",
        title="Resume without the scaler's state",
        rule="forgotten_state",
        figure="scale",
        look="At the resume in the middle the scale jumps back to its first value, and the same search costs skips "
        "again.",
    ),
    Exhibit(
        patient="clipped while scaled",
        title="Clipping before unscaling",
        rule="clip_before_unscale",
        figure="norm",
        look="The gradient norm is tiny and the same in every step: clipping cut the scaled gradients, which were then "
        "divided by the scale.",
    ),
)

_HEAD = """\
# Gallery of broken runs

Ten real fp16 trainings of a small model, each with one known fault. Look at the picture, then open the report, as
`ampmon report` writes it.
"""


def page(exhibits: Sequence[Exhibit] = EXHIBITS) -> str:
    return _HEAD + "".join(map(_section, exhibits))


def _section(exhibit: Exhibit) -> str:
    name, rule = f"gallery/{exhibit.name}", exhibit.rule
    return (
        f"\n## {exhibit.title}\n\n[![{exhibit.title}, in a chart of its report]({name}.png)]({name}.html)\n\n"
        f"{exhibit.look}\n\n[Open the report]({name}.html) · [{rule}](findings/{rule}.md)\n"
    )
