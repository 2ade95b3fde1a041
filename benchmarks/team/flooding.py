"""A process that floods a server at a fixed rate with invalid tokens, over kept-alive connections.

It prints `flooding` when all connections are open, and ends when its input does. Then it prints in JSON how many
responses were 401 or 429 and how many were others, and for how many seconds it ran. Its argument is a token, or `new`
for a different, well-formed one in each request.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import sys
import time
from typing import Any
from urllib.parse import urlsplit


CONNECTIONS = 100
"""With so many, the rate of a thousand a second still holds if a response takes a tenth of a second."""

NEW = "new"
_REFUSALS = (b"401", b"429")
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class _Flood:
    """Connections that send requests in turn, and the counts of their responses."""

    def __init__(self, url: str, token: str, per_s: float) -> None:
        self._address = urlsplit(url)
        self._token, self._every_s = token, CONNECTIONS / per_s
        self.refused = self.others = 0

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._address.hostname, self._address.port)

    async def ask(self, number: int, reader: Any, writer: Any) -> None:
        """Send requests forever, each when it is due, or at once if it is late."""
        due = time.monotonic() + self._every_s * number / CONNECTIONS
        while True:
            await asyncio.sleep(max(due - time.monotonic(), 0))
            due = max(due + self._every_s, time.monotonic() - self._every_s)
            writer.write(self._request())
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            await reader.readexactly(int(length[1]) if length else 0)
            if head.split(b" ", 2)[1] in _REFUSALS:
                self.refused += 1
            else:
                self.others += 1

    def _request(self) -> bytes:
        token = f"ampmon_{secrets.token_urlsafe(32)}" if self._token == NEW else self._token
        return (
            f"POST /api/v1/ingest HTTP/1.1\r\nHost: {self._address.netloc}\r\n"
            f"Content-Type: application/msgpack\r\nAuthorization: Bearer {token}\r\n"
            "Content-Length: 0\r\n\r\n"
        ).encode()


async def _main(url: str, token: str, per_s: float) -> None:
    flood = _Flood(url, token, per_s)
    opened = [await flood.open() for _ in range(CONNECTIONS)]
    print("flooding", flush=True)
    began = time.monotonic()
    asking = [asyncio.create_task(flood.ask(n, *each)) for n, each in enumerate(opened)]
    await asyncio.to_thread(sys.stdin.read)
    seconds = time.monotonic() - began
    failed = sum(each.done() for each in asking)
    for each in asking:
        each.cancel()
    seen = {"refused": flood.refused, "others": flood.others, "failed": failed, "seconds": seconds}
    print(json.dumps({**seen, "cpu_s": time.process_time()}), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
