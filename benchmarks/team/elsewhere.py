"""A tiny server that rejects every request. It shows what a flood costs the sender, without ampmon.

It prints its address, and ends when its input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys


_BODY = b"x" * 200  # about as long as ampmon's own
_ANSWER = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(_ANSWER)
    writer.close()


async def _main() -> None:
    server = await asyncio.start_server(_refuse, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main())
