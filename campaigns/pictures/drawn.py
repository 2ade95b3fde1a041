"""Draws the pictures of docs/concepts.md as SVG in the product's colours, with the numbers of a training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from html import escape

import numpy as np

from ampmon.numerics.formats import FP16
from ampmon.numerics.histogram import EXPONENT_MIN, Statistics
from ampmon_server.charts.histogram import ROLES
from ampmon_server.model.words import count, magnitude_of, percent, power_of_two, two_to
from campaigns.pictures.measured import Measured, Update


WIDTH = 440
"""In units, each at least 0.75 pixels on a phone of 390 pixels, so that text of 14 units is readable."""
TEXT = 14
SHOWN = 520
"""Width in pixels where there is room."""
MONO = "ui-monospace, Menlo, 'DejaVu Sans Mono', monospace"
SANS = "system-ui, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"

Colours = Mapping[str, str]


class Drawing:
    """An SVG drawn from top to bottom. Positions are in units of `WIDTH`, colours are roles."""

    def __init__(self, title: str, height: int, colours: Colours) -> None:
        self._colours = colours
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{SHOWN}" height="{SHOWN * height // WIDTH}" font-family="{SANS}" font-size="{TEXT}">',
            f"<title>{escape(title)}</title>",
        ]
        self.box(0, 0, WIDTH, height, "background", rx=8)

    def box(
        self, x: float, y: float, width: float, height: float, role: str, **more: object
    ) -> None:
        at = f'x="{x:.4g}" y="{y:.4g}" width="{width:.4g}" height="{height:.4g}"'
        self._add("rect", role, at, more)

    def line(self, x: float, y: float, to_x: float, to_y: float, role: str, **more: object) -> None:
        at = f'd="M{x:.4g} {y:.4g}L{to_x:.4g} {to_y:.4g}"'
        self._add("path", "none", at, {"stroke": self._colours[role], **more})

    def path(self, steps: str, role: str, **more: object) -> None:
        self._add("path", role, f'd="{steps}"', more)

    def text(self, x: float, y: float, words: str, role: str = "ink", **more: object) -> None:
        attributes = self._attributes(role, more)
        self._parts.append(f'<text x="{x:.4g}" y="{y:.4g}"{attributes}>{escape(words)}</text>')

    def mark(self, x: float, y: float, update: Update) -> None:
        """Draw a triangle: up for a growth of the scale, down for a back-off."""
        role, up = ("growth", 1) if update.after > update.scale else ("backoff", -1)
        self.path(f"M{x - 5:.5g} {y + 5 * up:.5g}h10l-5 {-9 * up}z", role)

    def __str__(self) -> str:
        return "\n".join([*self._parts, "</svg>\n"])

    def _add(self, tag: str, role: str, at: str, more: Mapping[str, object]) -> None:
        self._parts.append(f"<{tag} {at}{self._attributes(role, more)}/>")

    def _attributes(self, role: str, more: Mapping[str, object]) -> str:
        given = {"fill": self._colours.get(role, role), **more}
        return "".join(f' {key.replace("_", "-")}="{value}"' for key, value in given.items())


MARGIN = 16
LOW, HIGH = FP16.exponent_min_subnormal - 6, FP16.exponent_max + 6
"""Exponents at the ends of the number line, with room beyond fp16's for a bar of zeros and one of inf."""
ROW, BARS = 120, 64
LIMITS = {
    FP16.min_subnormal: two_to(FP16.exponent_min_subnormal),
    FP16.min_normal: two_to(FP16.exponent_min_normal),
    FP16.max: count(int(FP16.max)),
}
SCALES = ("too small", "enough", "too large")


def place(magnitude: float) -> float:
    """The x position of a magnitude on the number line."""
    return MARGIN + (math.log2(magnitude) - LOW) / (HIGH - LOW) * (WIDTH - 2 * MARGIN)


def number_line(measured: Measured, colours: Colours) -> str:
    """Draw one batch's gradient on fp16's number line at three scales. Bars count elements, on a log scale."""
    drawing = Drawing("fp16's number line and one gradient at three scales", 3 * ROW + 96, colours)
    bottom = 3 * ROW + 16
    smallest, normal, largest = map(place, LIMITS)
    most = max(max(_bars(each).values()) for each in measured.gradients.values())
    for row, (scale, gradient) in enumerate(measured.gradients.items()):
        base = (row + 1) * ROW
        drawing.text(
            MARGIN, base - BARS - 28, f"scale {power_of_two(scale)}: {SCALES[row]}", font_weight=600
        )
        drawing.text(MARGIN, base - BARS - 9, _lost(gradient), "muted", font_size=TEXT - 1)
        for x, to, role in ((smallest, normal, "subnormal"), (normal, largest, "normal")):
            drawing.box(x, base - BARS, to - x, BARS, role, opacity=0.12)
        drawing.line(MARGIN, base, WIDTH - MARGIN, base, "hairline")
        for x in (smallest, normal, largest):
            drawing.line(x, base - BARS, x, base, "ink", stroke_dasharray="2 3")
        for (exponent, role), elements in _bars(gradient).items():
            x, height = place(2.0**exponent), BARS * math.log(1 + elements) / math.log(1 + most)
            width = place(2.0 ** (exponent + 1)) - x - 1.5
            drawing.box(x, base - height, width, height, role)
    for limit, words in LIMITS.items():
        drawing.text(place(limit), bottom + 16, words, text_anchor="middle")
    ends = (MARGIN, smallest, normal, largest, WIDTH - MARGIN)
    for x, to, words in zip(ends, ends[1:], ("zero", "subnormal", "normal", "inf"), strict=False):
        drawing.text((x + to) / 2, bottom + 42, words, text_anchor="middle")
    drawing.text(
        WIDTH / 2,
        bottom + 64,
        "bars: gradient elements by magnitude (log scale)",
        "muted",
        text_anchor="middle",
        font_size=TEXT - 1,
    )
    return str(drawing)


def _bars(gradient: Statistics) -> dict[tuple[int, str], int]:
    """Counts by exponent and role. Zeros go below fp16's range, inf and NaN above."""
    histogram, classes = gradient.histogram.sum(0), gradient.classes()
    bars = {
        (exponent, ROLES["subnormal" if exponent < FP16.exponent_min_normal else "normal"]): int(
            histogram[exponent - EXPONENT_MIN]
        )
        for exponent in (np.flatnonzero(histogram) + EXPONENT_MIN).tolist()
    }
    bars[FP16.exponent_min_subnormal - 3, ROLES["zero"]] = int(classes.zero.sum())
    bars[FP16.exponent_max + 2, ROLES["not_finite"]] = int(classes.not_finite.sum())
    return {key: elements for key, elements in bars.items() if elements}


def _lost(gradient: Statistics) -> str:
    classes = gradient.classes()
    if infinite := int(classes.not_finite.sum()):
        return f"{count(infinite)} of {count(int(classes.total.sum()))} elements are inf or NaN"
    shares = {
        name: getattr(classes, name).sum() / classes.total.sum() for name in ("subnormal", "zero")
    }
    return ", ".join(f"{percent(share)} {name}" for name, share in shares.items())


def _power(scale: float) -> str:
    return two_to(round(math.log2(scale)))


def _largest(update: Update) -> str:
    return f"max {'inf' if update.skipped else magnitude_of(update.largest)}"


def _outcome(update: Update) -> str:
    return "skipped" if update.skipped else "applied"


COLUMNS = (270, 375)
LINE = 56
CALLS: tuple[tuple[str, str, Callable[[Update], str]], ...] = (
    ("loss = model(batch)", "forward, in fp16", lambda update: f"loss {update.loss:.3f}"),
    ("scaler.scale(loss)", "multiply the loss", lambda update: f"× {_power(update.scale)}"),
    (".backward()", "gradients, in fp16", _largest),
    ("scaler.step(optimizer)", "÷ scale, step if finite", _outcome),
    (
        "scaler.update()",
        "set the next scale",
        lambda update: f"{_power(update.scale)} → {_power(update.after)}",
    ),
)
"""The calls of an update, what each does, and its result in one update. ampmon records all but the first."""


def anatomy(measured: Measured, colours: Colours) -> str:
    """Draw the calls of an update and their results in two: one after which the scale grew, and one skipped."""
    drawing = Drawing("The anatomy of an update", len(CALLS) * LINE + 108, colours)
    for x, update in zip(COLUMNS, measured.tooth, strict=True):
        drawing.text(x, 28, f"step {update.step}", text_anchor="middle", font_weight=600)
    for number, (call, does, what) in enumerate(CALLS):
        y = 62 + number * LINE
        drawing.line(MARGIN, y - 22, WIDTH - MARGIN, y - 22, "hairline")
        if number:
            drawing.box(MARGIN, y - 10, 5, 30, "accent", rx=2)
        drawing.text(MARGIN + 12, y, call, font_family=MONO, font_size=TEXT - 1)
        drawing.text(MARGIN + 12, y + 19, does, "muted")
        for x, update in zip(COLUMNS, measured.tooth, strict=True):
            role = "skip" if update.skipped and number in (2, 3) else "ink"
            drawing.text(x, y + 9, what(update), role, text_anchor="middle")
    y = 62 + len(CALLS) * LINE
    drawing.line(MARGIN, y - 22, WIDTH - MARGIN, y - 22, "hairline")
    for x, update in zip(COLUMNS, measured.tooth, strict=True):
        drawing.mark(x - 38, y - 5, update)
        word = "back-off" if update.skipped else "growth"
        drawing.text(x + 4, y, word, text_anchor="middle", font_weight=600)
    drawing.box(MARGIN, y + 10, 5, 18, "accent", rx=2)
    drawing.text(MARGIN + 12, y + 24, "recorded by ampmon; gradients in some updates only", "muted")
    return str(drawing)


LEFT, TOP, BOTTOM = 48, 64, 250


def sawtooth(measured: Measured, colours: Colours) -> str:
    """Draw the scale of each update of a training, with its growths and back-offs."""
    drawing = Drawing("The loss scale of a training: growth and back-off", BOTTOM + 72, colours)
    updates = measured.updates
    exponents = [math.log2(each.scale) for each in updates]
    low, high = math.floor(min(exponents)), math.ceil(max(exponents))

    def at(step: int, scale: float) -> tuple[float, float]:
        x = LEFT + step / len(updates) * (WIDTH - MARGIN - LEFT)
        return x, BOTTOM - (math.log2(scale) - low) / (high - low) * (BOTTOM - TOP)

    for exponent in range(low, high + 1):
        _, y = at(0, 2.0**exponent)
        drawing.line(LEFT, y, WIDTH - MARGIN, y, "grid")
        drawing.text(LEFT - 8, y + 5, two_to(exponent), "muted", text_anchor="end")
    steps = "M" + "L".join(
        f"{x:.5g} {y:.5g}"
        for update in updates
        for step in (update.step, update.step + 1)
        for x, y in [at(step, update.scale)]
    )
    drawing.path(steps, "none", stroke=colours["scale"], stroke_width=2)
    for update in updates:
        if update.after == update.scale:
            continue
        x, y = at(update.step + 1, update.after)
        drawing.mark(x, y, update)
        if update.skipped:
            drawing.line(x, BOTTOM + 18, x, BOTTOM + 30, "skip", stroke_width=2)
    causes = (
        f"growth: {{}} after {measured.growth_interval} updates without a skip",
        "back-off: {} after a skip",
    )
    for y, update, cause in zip((22, 44), measured.tooth, causes, strict=True):
        drawing.mark(LEFT + 5, y - 5, update)
        drawing.text(LEFT + 18, y, cause.format(f"× {update.after / update.scale:g}"))
    drawing.text(LEFT - 8, BOTTOM + 29, "skips", "skip", text_anchor="end")
    drawing.text(LEFT, BOTTOM + 54, "update 0", "muted")
    drawing.text(WIDTH - MARGIN, BOTTOM + 54, str(len(updates)), "muted", text_anchor="end")
    return str(drawing)


DRAWN: Mapping[str, Callable[[Measured, Colours], str]] = {
    "number-line": number_line,
    "anatomy": anatomy,
    "sawtooth": sawtooth,
}
"""By the name of the file in docs/img, without the theme."""
