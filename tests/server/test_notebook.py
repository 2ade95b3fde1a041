"""Charts and the page in a notebook, with a running server and from a data directory alone."""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import ampmon
from ampmon_server import notebook
from ampmon_server.charts import RUN_FIGURES
from ampmon_server.charts.parts.roles import resolve
from ampmon_server.client import ClientError
from posted import PostedRun
from serving import Server


ROLES = json.loads((Path(__file__).parents[2] / "web" / "roles.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def posted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostedRun]:
    """A run of forty updates, every fourth skipped, on a running server."""
    with Server(tmp_path_factory.mktemp("notebook") / "ampmon") as server:
        run = PostedRun(server, name="a <b>run</b>")
        for _ in range(10):
            run.updates(3)
            run.updates(skipped=True)
        yield run


def test_a_figure_is_the_pages(posted: PostedRun) -> None:
    """A notebook figure has the page's traces in the theme's colours, with the page's title above them."""
    directory = posted.server.directory
    answer = posted.server.get(f"{posted.path}/figures/scale?start=8&width=600")
    figure = notebook.figure(
        posted.run_id.hex[:8], data_dir=directory, start=8, width=600, theme="dark"
    )
    drawn = json.loads(figure.to_json())
    assert drawn["data"] == json.loads(json.dumps(resolve(answer["data"], ROLES["dark"])))
    assert drawn["layout"]["xaxis"]["range"] == answer["layout"]["xaxis"]["range"]
    assert drawn["layout"]["paper_bgcolor"] == ROLES["dark"]["background"]
    assert drawn["layout"]["title"]["text"].startswith("<b>Loss scale</b><br>")


@pytest.mark.parametrize("zone", [0, 330, -180])
def test_times_are_of_the_zone_that_is_asked_for(posted: PostedRun, zone: int) -> None:
    """Plotly would show numbers by the clock of whoever opens the notebook, under the name of the zone."""
    asked = {"x": "time", "zone": zone, "data_dir": posted.server.directory}
    there = timezone(timedelta(minutes=zone))
    for name, figure in notebook.figures(posted.run_id.hex[:8], **asked).items():
        axis = figure.layout.xaxis
        if axis.type != "date":
            continue
        low, high = map(datetime.fromisoformat, axis.range)
        times = [datetime.fromisoformat(each) for trace in figure.data for each in trace.x]
        assert low <= min(times) <= max(times) <= high, name
        assert {each.utcoffset() for each in times} == {there.utcoffset(None)}
        assert abs(low.timestamp() - posted.started / 1e6) < 60


def test_all_figures_of_a_directory_without_a_server(posted: PostedRun) -> None:
    """Without a server, figures come from the database: an empty one says why, and an unknown name is an error."""
    directory = posted.server.directory
    posted.server.stop()
    figures = notebook.figures("a <b>run</b>", data_dir=directory)
    assert set(figures) == set(RUN_FIGURES)
    assert figures["whatif"].data
    (why,) = figures["activations"].layout.annotations
    assert "Activations are not measured" in why.text
    with pytest.raises(ClientError, match="There is no figure 'scales'; there are scale"):
        notebook.figure(name="scales", data_dir=directory)
    with pytest.raises(ClientError, match="start `ampmon serve`"):
        notebook.page(data_dir=directory)
    posted.server.start()


def test_what_came_of_a_try_stands_above_its_chart(posted: PostedRun) -> None:
    """The titles of the what-if and simulator charts contain the page's sentence and the whole line of code."""
    server = posted.server
    for name, line in (
        (
            "whatif",
            'scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)  # init_scale was 65536',
        ),
        (
            "simulated",
            'scaler = torch.amp.GradScaler("cpu", init_scale=1024, growth_interval=7)  # init_scale was 65536; '
            "growth_interval was 2000",
        ),
    ):
        asked = {"whatif_scale": 4, "sim_init_scale": 1024, "sim_growth_interval": 7}
        query = "&".join(f"{key}={value}" for key, value in asked.items())
        meta = server.get(f"{posted.path}/figures/{name}?{query}")["layout"]["meta"]
        above = notebook.figure(name=name, data_dir=server.directory, **asked).layout.title.text
        words = html.unescape(above.replace("<br>", " "))
        assert meta["sentence"]
        assert f" {meta['sentence']} " in words
        assert words.endswith(f" {line}")


def test_the_page_in_a_cell_comes_in_by_a_code_of_its_own(posted: PostedRun) -> None:
    """Each display of the page has a new one-time code in its URL, under the address given as ``browser_url``."""
    server = posted.server
    page = notebook.page(
        "a <b>run</b>", data_dir=server.directory, browser_url="https://hub.example/x/", height=500
    )
    first, second = (_source(page._repr_html_()) for _ in range(2))
    address, _, code = first.partition("?code=")
    assert address == f"https://hub.example/x/#{posted.path}"
    assert second.startswith(address)
    assert first != second
    for expected in (200, 401):
        answer = server.request(
            "POST",
            "/login",
            body=json.dumps({"key": code, "memory": True}).encode(),
            headers={"Content-Type": "application/json", "Origin": server.url},
        )
        assert answer.status == expected, answer.data
    assert _source(notebook.page(data_dir=server.directory)._repr_html_()).startswith(
        f"{server.url}/#/?code="
    )


def _source(frame: str) -> str:
    """The ``src`` of an iframe, unescaped."""
    found = re.fullmatch(r'<iframe src="([^"]*)" width="100%" .*</iframe>', frame)
    assert found is not None
    return html.unescape(found[1])


def test_a_cell_has_words_and_charts_where_no_frame_may_be(posted: PostedRun) -> None:
    """Where framing is not allowed or no server runs, a cell shows findings, charts and what to do."""
    server = posted.server
    for running, words in (
        (True, "--frame-ancestors"),
        (False, "For the live page, start: ampmon serve"),
    ):
        if not running:
            server.stop()
        cell = ampmon.show("a <b>run</b>", data_dir=server.directory)
        assert repr(cell).startswith("a <b>run</b>  tests, running, 40 steps\n")
        assert "\nloss scale, 2^7 to 2^16, and skipped steps\n" in repr(cell)
        assert "notice: " in repr(cell)
        assert "    scaler = " in repr(cell)
        assert words in repr(cell)
        titles = [each.layout.title.text for each in cell.charts]
        assert [chart.data != () for chart in cell.charts] == [True] * 3
        assert titles[0].startswith("<b>Loss scale</b>")
    server.start()


def test_a_cell_without_an_answer_says_why(tmp_path: Path) -> None:
    """Without a server or a database, the cell says that no server runs, and has no charts."""
    cell = ampmon.show(data_dir=tmp_path)

    assert repr(cell).startswith("ampmon: no server runs on ")
    assert cell.charts == ()


def test_a_cell_has_the_live_page_of_the_run_that_trains(
    new_server: Callable[..., Server], data_directory: Path
) -> None:
    """Without a name, the cell frames the live page of this process's run, even if another run is newer."""
    server = new_server(data_directory, options=["--frame-ancestors", "http://localhost:8888"])
    run_id = ampmon.init("tests", "in a cell", url=server.url)
    PostedRun(server, "in a cell", run_id=run_id)
    PostedRun(server, "a newer one")
    page = ampmon.show()
    ampmon.finish()

    assert _source(page._repr_html_()).startswith(f"{server.url}/#/runs/{run_id}?code=")


def test_without_the_server_a_cell_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the server extra, the cell shows the pip command that installs it from ampmon's own location."""
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    monkeypatch.delitem(sys.modules, "ampmon_server.notebook")
    cell = ampmon.show()

    assert f"pip install '{Path(__file__).parents[2]}[server]'" in repr(cell)
