"""Live news of runs: from the bus to its listeners, and from the server to a page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from uuid import uuid4

import urllib3

from ampmon_server.background import bus as news
from ampmon_server.background.bus import Bus
from ampmon_server.store import Advance
from batches import Trainer
from posted import post
from serving import Server
from waiting import DEADLINE_S, wait_for


def test_many_advances_are_sent_as_one() -> None:
    """Many advances of a run between two reads arrive as one, the newest."""
    bus, run = Bus(), uuid4()
    published = [Advance(run, version, version) for version in range(1, 1001)]

    async def listen() -> list[Advance]:
        received = []
        with bus.listen() as listener:
            await asyncio.to_thread(lambda: [bus.publish(each) for each in published])
            async for advances in listener.advances():
                received += advances
                if published[-1] in received:
                    bus.close()
        return received

    assert asyncio.run(asyncio.wait_for(listen(), DEADLINE_S)) == published[-1:]


def test_a_listener_holds_so_much_and_no_more() -> None:
    """The number of runs that wait for a slow listener is bounded."""
    bus = Bus()

    async def crowd() -> int:
        with bus.listen() as listener:
            for _ in range(news.RUNS_KEPT_MAX + 100):
                bus.publish(Advance(uuid4(), 1, None))
            advances = listener.advances()
            received = await anext(advances)
            await advances.aclose()
            return len(received)

    assert asyncio.run(crowd()) == news.RUNS_KEPT_MAX


def test_a_closed_bus_keeps_nobody() -> None:
    """Listening on a closed bus ends at once."""
    bus = Bus()
    bus.close()

    async def listen() -> list[list[Advance]]:
        with bus.listen() as listener:
            return [advances async for advances in listener.advances()]

    assert asyncio.run(asyncio.wait_for(listen(), DEADLINE_S)) == []


def advances(response: urllib3.BaseHTTPResponse) -> Iterator[dict[str, object]]:
    """The data of a stream's `advance` events as they arrive."""
    buffer = b""
    for chunk in response.stream(1024):
        buffer += chunk
        while b"\n\n" in buffer:
            event, buffer = buffer.split(b"\n\n", 1)
            lines = dict(line.split(b": ", 1) for line in event.splitlines() if b": " in line)
            if lines.get(b"event") == b"advance":
                yield json.loads(lines[b"data"])


def test_a_page_hears_of_what_is_stored(server: Server) -> None:
    """A stream begins with the version of each requested run and sends each new one."""
    trainer, other = Trainer(), Trainer()
    post(server, trainer.batch(trainer.updates(3)))
    post(server, other.batch())
    stream = server.request("GET", f"/api/v1/live?runs={trainer.run_id}", preload_content=False)
    received = advances(stream)

    assert stream.headers["Content-Type"].startswith("text/event-stream")
    assert next(received) == {"run": str(trainer.run_id), "version": 1, "step": 2}
    post(server, other.batch(other.updates(1)))
    post(server, trainer.batch(trainer.updates(2)))
    assert next(received) == {"run": str(trainer.run_id), "version": 2, "step": 4}
    stream.close()


def test_a_sender_learns_whether_a_page_is_open(server: Server) -> None:
    """An acknowledgement says that runs are watched while an event stream is open, and only then."""
    trainer = Trainer()

    def watched() -> bool:
        return post(server, trainer.batch(trainer.updates(1))).watched

    assert not watched()
    stream = server.request("GET", "/api/v1/live", preload_content=False)
    assert watched()
    stream.close()
    wait_for(lambda: not watched(), "for the stream to end")


def test_streams_end_when_the_server_stops(server: Server) -> None:
    """A stopping server ends its streams properly and exits with 0."""
    stream = server.request("GET", "/api/v1/live", preload_content=False)
    process = server.process
    assert process is not None
    server.stop()

    assert list(advances(stream)) == []  # raises if the stream was cut
    assert process.returncode == 0
