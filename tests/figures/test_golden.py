"""Every chart of a small known run matches its golden file, which `tests/known_run.py` writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ampmon_server.charts import FIGURES
from ampmon_server.charts.compared import COMPARED
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from known_run import GOLDEN, draw, plain, send


NAMES = [*FIGURES, *(f"compared-{name}" for name in COMPARED)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the known run, and half of it as a second run."""
    directory: Path = tmp_path_factory.mktemp("known")
    opened = Store.open(Settings(data_directory=directory, judging=False))
    send(opened)
    yield opened
    opened.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_chart_is_as_its_golden_file_has_it(name: str, store: Store) -> None:
    """Each chart equals its golden file, with numbers compared to nine digits."""
    golden = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    assert plain(draw(store, name)) == golden


@pytest.mark.parametrize("name", NAMES)
def test_a_share_has_a_narrow_space_before_its_sign(name: str) -> None:
    """No words have "5%", as Plotly's own format does in a hover box, and no tick has a space that may break."""
    text = (GOLDEN / f"{name}.json").read_text(encoding="utf-8")
    assert re.findall(r'\d%(?!\{)|"\d+ %"|"tickformat": "[^"]*%"', text) == []


def test_there_is_a_golden_file_for_every_chart_and_no_other() -> None:
    """Every chart has a golden file, and every golden file has a chart."""
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(NAMES)
