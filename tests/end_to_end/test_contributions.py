"""The examples of docs/contributing.md, applied to a copy of the server."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from posted import PostedRun
from serving import Server
from waiting import wait_for
from web.reader import Reader


ROOT = Path(__file__).parents[2]
DIFFS = re.findall(r"^```diff\n(.*?)^```", (ROOT / "docs/contributing.md").read_text(), re.M | re.S)
LINES_MAX = 40
CHART = "#in-system [data-figure=overhead] .plot.js-plotly-plot"


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    """The path of an interpreter beside an `ampmon` command that runs the changed copy."""
    copy, programs = tmp_path / "copy", tmp_path / "bin"
    shutil.copytree(
        ROOT / "server/ampmon_server",
        copy / "server/ampmon_server",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    (copy / "web").symlink_to(ROOT / "web")
    for diff in DIFFS:
        subprocess.run(["git", "apply", "-"], input=diff, text=True, check=True, cwd=copy)
    programs.mkdir()
    (programs / "ampmon").write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(copy / 'server')!r})\n"
        "from ampmon_server.cli import main\nsys.exit(main())\n"
    )
    (programs / "ampmon").chmod(0o700)
    return programs / "python"


def test_a_new_chart_finding_and_statistic_are_served(
    interpreter: Path, new_server: Callable[..., Server], new_reader: Callable[[Server], Reader]
) -> None:
    """A new chart is drawn in its tab, and a new finding and a new statistic are on the page and in the answers."""
    assert [len(diff.splitlines()) <= LINES_MAX for diff in DIFFS] == [True, True, True]
    server = new_server(python=interpreter)
    runs = [PostedRun(server)]
    runs += [PostedRun(server, run_id=runs[0].run_id) for _ in range(2)]
    for run in runs:
        run.updates(2)

    def rules() -> list[str]:
        return [each["rule"] for each in server.get(f"{runs[0].path}/diagnosis")["findings"]]

    wait_for(lambda: "restarted" in rules())
    (line,) = server.get(f"{runs[0].path}/figures/overhead")["data"]
    assert line["name"] == "overhead"
    row = server.get(f"{runs[0].path}/parameters?sort=rms")["parameters"][0]
    assert row["statistics"] == {"rms": pytest.approx(row["norm"] / row["numel"] ** 0.5)}
    (heatmap,) = server.get(f"{runs[0].path}/figures/parameters?statistic=rms")["data"]
    assert "root mean square" in heatmap["hovertemplate"]

    reader = new_reader(server)
    reader.show(runs[0], "?tab=system")
    words = "document.querySelector('.findings').textContent"
    reader.wait("the finding", lambda: "was started 3 times" in reader.ask(words))
    reader.figure("overhead").scroll_into_view_if_needed()
    reader.wait("the chart", lambda: reader.page.locator(CHART).count() == 1)
    reader.tab("gradients")
    cells = "[data-ledger=parameters] tbody [data-name='RMS, unscaled']"
    reader.wait("the statistic", lambda: any(reader.texts(cells)))
