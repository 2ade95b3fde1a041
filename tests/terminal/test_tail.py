"""`ampmon tail`: a run in progress, on a server that stops and starts, and in a directory without one."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from rich.console import Console

import ampmon
from ampmon.wire import Finding
from ampmon_server.cli import main
from ampmon_server.cli.terminal.following import Moment, RunFollower
from ampmon_server.cli.terminal.tailing import drawing, moments, state
from ampmon_server.client import ApiClient
from ampmon_server.client.answering import answering
from ampmon_server.client.answers import Run
from ampmon_server.client.sketch import Sketch
from batches import Trainer
from posted import PostedRun, post
from serving import Server
from waiting import wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("tail") / "ampmon") as server:
        yield server


def following(server: ApiClient, run: PostedRun) -> RunFollower:
    """A follower whose clock advances an hour per reading, so that every new version is diagnosed."""
    hours = iter(range(0, 10**9, 3600))
    return RunFollower(server, str(run.run_id), columns=lambda: 40, clock=lambda: next(hours))


def test_what_happens_is_reported_once(server: Server) -> None:
    """A growth, skips and a worse finding are each reported once. Earlier events and unchanged findings are not."""
    run = PostedRun(server)
    run.updates(8)
    run.updates(skipped=True)
    with answering(server.url, server.directory) as asked:
        follower = following(asked, run)
        assert follower.look().news == ()
        run.grow()
        run.updates(2)
        assert [each.words for each in follower.look().news] == ["scale 2¹⁵ → 2¹⁶"]
        run.updates(2, skipped=True)
        first, *others = follower.look().news
        last = "2 steps skipped, the last at step 12: inf in head.weight, scale 2¹⁵ → 2¹⁴"
        assert first.words == last
        assert "critical" in {each.severity for each in others}
        assert follower.look().news == ()


def test_skips_of_each_scaler_and_start_are_reported(server: Server) -> None:
    """A skip is reported even if another scaler, or an earlier start, has skipped a later step."""
    first = Trainer()
    second = Trainer(first.run_id, scaler="generator", attempt_id=first.attempt_id)
    post(server, first.batch(first.updates(20, skipped=[15])))
    post(server, second.batch(second.updates(4)))
    with answering(server.url, server.directory) as asked:
        follower = RunFollower(asked, str(first.run_id))
        follower.look()
        post(server, second.batch([second.update(skipped=True, scale=8.0)]))
        (news,) = follower.look().news
        assert news.words == "step 4 skipped: inf in head.weight, scale 2³ → 2²"
        again = Trainer(first.run_id, resume_step=10)
        post(server, again.batch([again.update(), again.update(skipped=True)]))
        assert [each.words.partition(":")[0] for each in follower.look().news] == [
            "started again (2 starts)",
            "step 11 skipped",
        ]


def test_the_scale_is_drawn_as_it_goes_on(server: Server) -> None:
    """Each moment has the sketch of the whole run, its rate and its findings."""
    run = PostedRun(server)
    run.updates(20)
    with answering(server.url, server.directory) as asked:
        follower = following(asked, run)
        assert len(follower.look().drawn.line) == 20
        run.updates(20, skipped=True)
        moment = follower.look()

    assert len(moment.drawn.line) == 40
    assert moment.drawn.marks == " " * 20 + "╵" * 20
    assert moment.rate == 1000.0
    assert moment.findings


def test_a_server_that_goes_and_comes_is_waited_for(server: Server) -> None:
    """A server that does not answer is reported once, then the run is followed again."""
    run = PostedRun(server)
    run.updates(3)
    reasons: list[str] = []

    def lost(why: str) -> None:
        reasons.append(why)
        server.start()
        run.updates(2)

    with answering(server.url, server.directory) as asked:
        each = moments(following(asked, run), lost)
        assert next(each).run.updates == 3
        server.stop()
        assert next(each).run.updates == 5

    assert len(reasons) == 1
    assert "does not answer" in reasons[0]
    assert reasons[0].endswith("; trying again")


def test_plain_lines_end_with_the_run(server: Server) -> None:
    """A finished run's findings and final state are printed, and the exit code is 0."""
    run = PostedRun(server, "over")
    run.updates(1000, sampled=False)
    run.updates(12, skipped=True)
    run.event("finish")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["tail", "over", "--url", server.url, "--data-dir", str(server.directory)])
    lines = [line[10:] for line in out.getvalue().splitlines()]

    assert code == 0
    assert re.match(r"(warning|critical): ", lines[0])
    assert lines[-1].startswith("step 1011  scale 2⁴  skipped 12 of 1012 updates (1.2%)")
    assert lines[-1].endswith("  finished")


def test_an_offline_training_is_followed_without_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A follower sees each new update until the end, beside other readers, and leaves no cursor in the spool."""
    ampmon.init("tests", "offline", dir=tmp_path, mode="offline")
    model = torch.nn.Linear(4, 2)
    scaler = ampmon.GradScaler("cpu", model=model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(updates: int) -> None:
        for _ in range(updates):
            scaler.scale(model(torch.ones(1, 4)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

    train(3)
    with answering(data_dir=tmp_path, for_long=True) as asked:
        run_id = str(scaler.monitor.run_id)
        follower = RunFollower(asked, run_id)
        wait_for(lambda: follower.look().run.updates == 3)
        train(4)
        wait_for(lambda: follower.look().run.updates == 7)
        assert main(["runs", "--data-dir", str(tmp_path)]) == 0
        assert " 7 " in capsys.readouterr().out
        ampmon.finish()
        wait_for(lambda: follower.look().ended)
        assert follower.look().run.status == "finished"
    (spool,) = (tmp_path / "spool").iterdir()

    assert main(["show", "--data-dir", str(tmp_path)]) == 0
    assert {"000000.seg", "closed"} <= {file.name for file in spool.iterdir()}
    assert not (spool / "cursor").exists()


RUN = Run(
    run_id="run", project="p", name="n", status="running", started=0, updates=1, scale=2.0**16
)


def test_the_view_fits_any_terminal() -> None:
    """At 80 and 40 columns no line of the view is too long, whatever the names, and control characters are removed."""
    long = "a-very-long-name" * 20
    finding = Finding(rule="r", severity="warning", title=long, explanation="e")
    run = msgspec.structs.replace(RUN, name=f"\x1b]0;owned\x07{long}", project=long)
    moment = Moment(run, None, Sketch("▁█" * 13, " ╵" * 13, 1, 9), (finding,) * 6, (), 12.5)
    for width in (80, 40):
        console = Console(width=width, file=io.StringIO())
        console.print(drawing(moment))
        assert isinstance(console.file, io.StringIO)
        printed = console.file.getvalue()
        assert max(map(len, printed.splitlines())) <= width
        assert not re.search(r"[\x00-\x09\x0b-\x1f]", printed)
        assert "2 more, and what to change: ampmon show run" in " ".join(printed.split())


def test_how_a_run_without_updates_stands() -> None:
    """The state of a run without updates has no step and omits unknown values."""
    moment = Moment(msgspec.structs.replace(RUN, updates=0), None, Sketch(), (), (), None)

    assert state(moment).split("  ")[0] == "step –"
    assert "loss" not in state(moment)
    assert "subnormal" not in state(moment)
