"""News of runs: from the bus to its listeners, and from the server to a page."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from uuid import uuid4

import urllib3

from ampmon_server import bus as news
from ampmon_server.bus import Advance, Bus
from batches import Trainer
from posted import post
from serving import Server


def heard(bus: Bus, runs: list[object] | None, publish: object) -> list[Advance]:
    """What a listener is told of what ``publish`` publishes from another thread, before the bus closes."""

    async def listen() -> list[Advance]:
        told = []
        with bus.listen(runs) as listener:  # type: ignore[arg-type]
            thread = threading.Thread(target=publish)  # type: ignore[arg-type]
            thread.start()
            async for advances in listener.advances():
                told += advances
        thread.join()
        return told

    return asyncio.run(asyncio.wait_for(listen(), 10))


def test_many_advances_are_told_as_one() -> None:
    """A run that moves on a thousand times between two looks is told of a few times, the last time with the newest."""
    bus, run = Bus(), uuid4()

    def publish() -> None:
        for version in range(1, 1001):
            bus.publish(Advance(run, version, version))
        time.sleep(3 * news.INTERVAL_S)
        bus.close()

    told = heard(bus, None, publish)

    assert told[-1] == Advance(run, 1000, 1000)
    assert len(told) <= 4


def test_a_listener_hears_of_its_runs_only() -> None:
    """Other runs' advances are not told."""
    bus, mine, other = Bus(), uuid4(), uuid4()

    def publish() -> None:
        bus.publish(Advance(other, 1, None))
        bus.publish(Advance(mine, 1, None))
        time.sleep(2 * news.INTERVAL_S)
        bus.close()

    assert heard(bus, [mine], publish) == [Advance(mine, 1, None)]


def test_a_listener_holds_so_much_and_no_more() -> None:
    """However many runs move on, what waits for a slow listener is bounded."""
    bus = Bus()

    async def crowd() -> int:
        with bus.listen() as listener:
            for _ in range(news.PENDING_MAX + 100):
                bus.publish(Advance(uuid4(), 1, None))
            advances = listener.advances()
            told = await anext(advances)
            await advances.aclose()
            return len(told)

    assert asyncio.run(crowd()) == news.PENDING_MAX


def test_a_closed_bus_keeps_nobody() -> None:
    """Who listens after the end is let go at once."""
    bus = Bus()
    bus.close()

    assert heard(bus, None, lambda: None) == []


def advances(response: urllib3.BaseHTTPResponse) -> Iterator[dict[str, object]]:
    """The data of a stream's `advance` events, as they come."""
    buffer = b""
    for chunk in response.stream(1024):
        buffer += chunk
        while b"\n\n" in buffer:
            event, buffer = buffer.split(b"\n\n", 1)
            lines = dict(line.split(b": ", 1) for line in event.splitlines() if b": " in line)
            if lines.get(b"event") == b"advance":
                yield json.loads(lines[b"data"])


def test_a_page_hears_of_what_is_stored(server: Server) -> None:
    """A stream begins with the version of each run asked for, and tells of a new one soon after it is stored."""
    trainer, other = Trainer(), Trainer()
    post(server, trainer.batch(trainer.updates(3)))
    post(server, other.batch())
    stream = server.request("GET", f"/api/v1/live?runs={trainer.run_id}", preload_content=False)
    told = advances(stream)

    assert stream.headers["Content-Type"].startswith("text/event-stream")
    assert next(told) == {"run": str(trainer.run_id), "version": 1, "step": 2}
    post(server, other.batch(other.updates(1)))
    began = time.monotonic()
    post(server, trainer.batch(trainer.updates(2)))
    assert next(told) == {"run": str(trainer.run_id), "version": 2, "step": 4}
    assert time.monotonic() - began < 2
    stream.close()


def test_streams_end_when_the_server_stops(server: Server) -> None:
    """A stop does not wait for those who listen, and they are told that it is over."""
    stream = server.request("GET", "/api/v1/live", preload_content=False)
    process = server.process
    assert process is not None
    began = time.monotonic()
    server.stop()

    assert list(advances(stream)) == []
    assert process.returncode == 0
    assert time.monotonic() - began < 5
