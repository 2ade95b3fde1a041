"""The colours of the roles: visible on their background, and distinct in each chart for all kinds of colour vision."""

from __future__ import annotations

import itertools

import pytest
from coloraide import Color

from shared_roles import ROLES, SHARED


THEMES = tuple(ROLES)
DRAWN = sorted({role for roles in SHARED.values() for role in roles})
EYES = (None, "protan", "deutan", "tritan")


def _seen(colour: str, eye: str | None) -> Color:
    return Color(colour).filter(eye).clip() if eye else Color(colour)


def test_both_themes_have_the_same_roles() -> None:
    """Both themes define the same roles."""
    assert ROLES["light"].keys() == ROLES["dark"].keys()


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("role", DRAWN)
def test_a_role_stands_out_from_the_background(theme: str, role: str) -> None:
    """Every drawn role has a contrast of at least 3:1 to the background, as WCAG requires of graphics."""
    assert Color(ROLES[theme][role]).contrast(ROLES[theme]["background"]) >= 3


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("role", ["ink", "muted", "accent", "skip"])
def test_text_can_be_read(theme: str, role: str) -> None:
    """Text has a contrast of at least 4.5:1 on the page and on hover labels, as WCAG requires."""
    for ground in ("background", "surface"):
        assert Color(ROLES[theme][role]).contrast(ROLES[theme][ground]) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("chart", SHARED)
def test_roles_of_one_chart_differ(theme: str, eye: str | None, chart: str) -> None:
    """Any two colours of a chart differ by at least 10 in CIEDE2000, also with simulated colour blindness."""
    colours = {role: _seen(ROLES[theme][role], eye) for role in SHARED[chart]}
    for (a, first), (b, second) in itertools.combinations(colours.items(), 2):
        assert first.delta_e(second, method="2000") >= 10, f"{a} and {b}"


@pytest.mark.parametrize("theme", THEMES)
def test_a_single_element_is_seen_in_the_heatmap(theme: str) -> None:
    """The colour of the smallest count has a contrast of at least 3:1 to the background."""
    lowest = ROLES[theme]["counts"][0][1]
    assert Color(lowest).contrast(ROLES[theme]["background"]) >= 3


@pytest.mark.parametrize("theme", THEMES)
def test_a_share_of_none_is_bare(theme: str) -> None:
    """A share of zero has the colour of the background, and larger shares differ more from it in lightness."""
    scale = ROLES[theme]["shares"]
    assert scale[0] == [0, ROLES[theme]["background"]]
    lightness = [Color(colour).convert("lab")["lightness"] for _, colour in scale]
    apart = [abs(each - lightness[0]) for each in lightness]
    assert all(a < b for a, b in itertools.pairwise(apart))


@pytest.mark.parametrize("theme", THEMES)
def test_counts_grow_lighter(theme: str) -> None:
    """The heatmap's colours get steadily lighter with the count."""
    lightness = [Color(colour).convert("lab")["lightness"] for _, colour in ROLES[theme]["counts"]]
    assert all(a < b for a, b in itertools.pairwise(lightness))
