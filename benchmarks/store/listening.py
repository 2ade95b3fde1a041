"""A process that holds many live streams of a server open, as pages do, and counts the advances.

It prints `listening` when all are open, and ends when its input does. Then it prints the advances on all streams, the
fewest on any stream, and the number of streams that had ended by then.
"""

from __future__ import annotations

import asyncio
import sys
from urllib.parse import urlsplit


class _Ears:
    def __init__(self, url: str, token: str) -> None:
        self._address = urlsplit(url)
        self._token = token
        self.advances: list[int] = []

    async def open(self) -> asyncio.Task[None]:
        """Open a stream and wait for its response. Raises ConnectionError unless that is a 200."""
        host, port = self._address.hostname, self._address.port
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(
            f"GET /api/v1/live HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/event-stream\r\n"
            f"Authorization: Bearer {self._token}\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise ConnectionError(head.decode())
        self.advances.append(0)
        return asyncio.create_task(self._listen(len(self.advances) - 1, reader, writer))

    async def _listen(
        self, number: int, reader: asyncio.StreamReader, _: asyncio.StreamWriter
    ) -> None:
        while part := await reader.read(65536):
            self.advances[number] += part.count(b"event: advance")


async def _main(url: str, token: str, streams: int) -> None:
    ears = _Ears(url, token)
    open_streams = [await ears.open() for _ in range(streams)]
    print("listening", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    ended = sum(stream.done() for stream in open_streams)
    for stream in open_streams:
        stream.cancel()
    print(sum(ears.advances), min(ears.advances), ended, flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
