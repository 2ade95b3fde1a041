"""A training, a server, and a browser that follows the training live."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from serving import Server
from training import Trainer, stored
from waiting import wait_for
from web.reader import Reader
from web.test_page import QUIET


def test_the_page_follows_a_training(
    new_server: Callable[..., Server],
    new_reader: Callable[[Server], Reader],
    own_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stream alone adds points to the chart, and a row with its culprit for each skip."""
    server = new_server(port=own_port)
    monkeypatch.setenv("AMPMON_URL", server.url)
    monkeypatch.setenv("AMPMON_MODE", "online")
    reader, rows = new_reader(server), "[data-ledger=skips] tbody tr"
    reader.page.add_init_script(QUIET)
    with Trainer() as trainer:
        trainer.train(50)
        wait_for(lambda: stored(server, trainer.run_id))
        reader.open(f"#/runs/{trainer.run_id}")
        first = reader.wait("the chart", reader.newest)
        trainer.train(100)
        reader.wait("newer ones", lambda: reader.newest() > first)
        reader.tab("skips")
        reader.wait("a culprit", lambda: ["bias" in row for row in reader.texts(rows)] == [True])
        trainer.train(100)
        reader.wait("another skip", lambda: len(reader.texts(rows)) == 2)
        for name in ("skips", "underflow", "exponents"):
            reader.figure(name).scroll_into_view_if_needed()
            reader.wait(name, lambda name=name: reader.plot(name, "true"))
