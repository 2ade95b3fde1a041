"""The drawn pictures contain what a training measured, and their texts are readable."""

from __future__ import annotations

from pathlib import Path

from ampmon_server.model.words import two_to
from browser import chromium
from campaigns.pictures.__main__ import THEMES, draw
from campaigns.pictures.drawn import DRAWN, LIMITS
from campaigns.pictures.measured import train


TEXTS = """() => {
    const whole = document.querySelector("svg").getBoundingClientRect();
    const boxes = [...document.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
    const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top + 3 || b.bottom <= a.top + 3;
    return boxes.map(([text, box], place) => [text.textContent, box.left >= whole.left && box.right <= whole.right
        && box.bottom <= whole.bottom && boxes.slice(0, place).every(([, other]) => apart(box, other))]);
}"""
"""Each text of a drawing, and whether it is within the drawing and covers no text before it."""


def test_a_drawing_shows_what_was_measured(tmp_path: Path) -> None:
    """In both themes no text leaves a drawing or covers another, and the numbers are the training's."""
    measured = train(
        8, 2.0**16, growth_interval=1
    )  # the scale grows at each update until it overflows
    draw(measured, DRAWN, tmp_path)
    texts: dict[str, list[str]] = {}
    with chromium() as browser, browser.new_page() as page:
        for path in sorted(tmp_path.glob("*.svg")):
            page.set_content(path.read_text())
            found = page.evaluate(TEXTS)
            assert [words for words, is_free in found if not is_free] == [], path.name
            texts[path.stem] = [words for words, _ in found]

    assert len(texts) == len(DRAWN) * len(THEMES)
    grown, skipped = measured.tooth
    assert {f"step {grown.step}", f"step {skipped.step}", "skipped"} <= {*texts["anatomy"]}
    assert two_to(16) in texts["sawtooth"]
    assert {*LIMITS.values()} <= {*texts["number-line"]}
    small, enough, large = measured.gradients.values()
    assert small.classes().subnormal.sum() > enough.classes().subnormal.sum()
    assert enough.classes().not_finite.sum() == 0 < large.classes().not_finite.sum()
