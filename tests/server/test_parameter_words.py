"""The parameters of a sampled update in words."""

from __future__ import annotations

from typing import Any

from ampmon_server.model.parameter_words import caption, cells


SAMPLED = {"step": 3, "total": 2, "found": 2, "on_grid": 2, "overflowed": 0, "sampled": False}
HINT = "pass model= to GradScaler() or watch()"
ROW: dict[str, Any] = {
    "sampled": True,
    "looked": 100,
    "inf": 0,
    "nan": 0,
    "on_grid": False,
    "on_grid_fraction": 0.5,
    "subnormal_fraction": 0.031,
    "subnormal_fraction_error": 0.002,
    "zero_fraction": None,
    "zero_fraction_error": None,
    "headroom_bits": -0.5,
    "headroom_bits_kind": None,
    "norm": None,
    "norm_kind": "inf",
    "statistics": {},
    "statistics_kinds": {},
}


def test_a_parameter_that_no_model_names_has_a_hint_how_to_name_it() -> None:
    """The caption says how to name parameters if one has no name, and nothing otherwise."""

    def words(*names: str) -> str:
        return caption({**SAMPLED, "parameters": [{"name": name} for name in names]}, "worst")

    assert HINT in words("head.weight", "parameter 1 [64 × 3]")
    assert HINT in words("parameter 0 [scalar]")
    assert HINT not in words("head.weight", "parameter")


def test_the_caption_says_what_is_special() -> None:
    """It names parameters in fp32, lost ones, samples, what a search matches, and the order if the worst come first."""
    plain = {**SAMPLED, "parameters": []}
    assert caption(plain, "model") == "At step 3: 2 of 2 parameters representable in fp16."
    special = {**plain, "total": 9, "found": 4, "on_grid": 5, "overflowed": 1, "sampled": True}
    assert caption(special, "worst") == (
        "At step 3: 5 of 9 parameters representable in fp16, the most subnormal first. The others' gradients were "
        "computed in fp32; they are listed last. In 1 parameter, every element is inf or NaN. Large parameters are "
        "sampled: ± is the standard error. The search matches 4."
    )


def test_a_row_is_shown_in_words() -> None:
    """Shares have their error, a sampled headroom is an upper bound, and what is unknown is a dash."""
    said = cells(ROW)
    assert said["subnormal"] == "3.1\u202f% ± 0.2\u202f%"
    assert said["headroom"] == "at most −0.5\u202fbits"
    assert (said["zero"], said["norm"], said["lost"]) == ("–", "∞", "0")
    assert said["on_grid"] == "no: 50\u202f%"


def test_a_row_without_finite_elements_is_on_no_grid() -> None:
    """If all elements are inf or NaN, the grid is not known, and their numbers are shown."""
    said = cells({**ROW, "inf": 60, "nan": 40})
    assert (said["on_grid"], said["lost"]) == ("–", "60, 40")
    assert cells({**ROW, "on_grid": True})["on_grid"] == "yes"
