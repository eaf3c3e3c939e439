"""An engine that answers every request with an evenly paced event stream, and does nothing else."""

from __future__ import annotations

import argparse
import asyncio
import contextlib

EVENT = (
    b'data: {"id":"chatcmpl-0123456789","object":"chat.completion.chunk","created":1764450000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" river"},"logprobs":null,"finish_reason":null}]}\n\n'
)
LAST = b'data: {"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":200}}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Frame a piece of a chunked body."""
    return b"%x\r\n" % len(data) + data + b"\r\n"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, events: int, interval: float) -> None:
    """Answer the requests of a connection, whose bodies have a length or are chunked."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            _, found, length = head.partition(b"content-length:")
            if found:
                await reader.readexactly(int(length.partition(b"\r\n")[0]))
            elif b"transfer-encoding: chunked" in head:
                await reader.readuntil(b"0\r\n\r\n")
            writer.write(HEAD)
            due = loop.time()
            for _ in range(events):
                writer.write(chunk(EVENT))
                due += interval
                await asyncio.sleep(due - loop.time())
            writer.write(chunk(LAST) + b"0\r\n\r\n")
            await writer.drain()
    writer.close()


async def serve(events: int, interval: float) -> None:
    """Serve until the process is ended; the port is printed."""
    server = await asyncio.start_server(
        lambda reader, writer: answer(reader, writer, events, interval), "127.0.0.1", 0, limit=1 << 20
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("events", type=int, help="events of a stream")
    parser.add_argument("interval", type=float, help="seconds between two of them")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(arguments.events, arguments.interval))


if __name__ == "__main__":
    main()
