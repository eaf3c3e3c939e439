"""An ext_proc server that decides nothing: what the transport alone costs."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bodies import MODEL
from ext_proc.core.duplex_messages import Pass
from ext_proc.core.exchange_messages import Continue, Kind
from ext_proc.core.model import Api, Decision, Endpoint, InferenceRequest, Operation
from ext_proc.core.names import ACCESS_LOG_SERVICE, EXT_PROC_SERVICE
from ext_proc.wire.codec import Encoder
from ext_proc.wire.duplex_codec import encode_piece, slice_piece
from ext_proc.wire.passing import Passing
from ext_proc.wire.server import GrpcServer
from ext_proc.wire.transport import Method, Reply

HEADERS_TAG = 0x12
"""First byte of a ProcessingRequest with request headers: Envoy writes fields in order. Good for a benchmark only."""

_NOTHING = Reply()
_RESPONSE_HEADERS = Encoder(1).encode(Continue(Kind.RESPONSE_HEADERS))


class NoOpSession:
    """Answers headers and body with constants."""

    def __init__(self, headers: Reply, bodies: Iterator[Reply]) -> None:
        self._headers = headers
        self._bodies = bodies

    def receive(self, message: bytes) -> Reply:
        """Tell the kind by the first byte."""
        return self._headers if message[0] == HEADERS_TAG else next(self._bodies)

    def close(self, *, delivered: bool) -> Reply:  # noqa: ARG002
        """Do nothing."""
        return _NOTHING


class EchoSession:
    """Answers in full duplex: headers with constants, and bodies with themselves.

    What follows the pick goes out together with the next read, as in kvpicker.
    """

    def __init__(self, picks: Iterator[Reply], passing: Passing) -> None:
        self._picks = picks
        self._passing = passing
        self._waiting = True

    def receive(self, message: bytes) -> Reply | bytes:
        """Tell the kind by the first byte, and echo pieces of bodies."""
        passed = self._passing.answer(message)
        if passed is not None:
            return passed[1]
        piece = slice_piece(message)
        if piece is None:
            return _NOTHING if message[0] == HEADERS_TAG else _RESPONSE_HEADERS
        echo = encode_piece(Pass(piece.kind, piece.body, piece.end_of_stream))
        if piece.kind is Kind.REQUEST_BODY and self._waiting:
            self._waiting = False
            return Reply(next(self._picks).message, more=(echo,))
        return echo

    def close(self, *, delivered: bool) -> Reply:  # noqa: ARG002
        """Do nothing."""
        return _NOTHING


class DiscardSession:
    """Takes access-log batches and keeps none but the first, in a file if one is named."""

    def __init__(self, record: Path | None) -> None:
        self._record = record

    def receive(self, message: bytes) -> Reply:
        """Throw it away."""
        if self._record is not None and not self._record.exists():
            part = self._record.with_suffix(".part")
            part.write_bytes(message)
            part.rename(self._record)
        return _NOTHING

    def close(self, *, delivered: bool) -> Reply:  # noqa: ARG002
        """Do nothing."""
        return _NOTHING


def answers(addresses: list[str], picked: Kind = Kind.REQUEST_BODY) -> tuple[Reply, Iterator[Reply]]:
    """Make the constants: what kvpicker itself would say, the pick going round all addresses.

    Args:
        addresses: the endpoints.
        picked: kind of the message that is answered with the pick.
    """
    encoder = Encoder(3)
    endpoints = [Endpoint(address=address, pool="bench", slot=slot) for slot, address in enumerate(addresses)]
    picks = [Continue(picked, _decision(endpoint), finished=True) for endpoint in endpoints]
    bodies = itertools.cycle([Reply(encoder.encode(pick), finished=True) for pick in picks])
    return Reply(encoder.encode(Continue(Kind.REQUEST_HEADERS))), bodies


def _decision(endpoint: Endpoint) -> Decision:
    return Decision(
        id="00000000-1",
        endpoints=(endpoint,),
        request=InferenceRequest(operation=Operation.CHAT, api=Api.OPENAI, model=MODEL, prompt_tokens=1000),
        chain_length=0,
        hit_tokens=400,
        reason="prefix",
        strategy="no-op",
        terms=(),
        filters=(),
        decided_at=0.0,
    )


async def serve(listen: str, addresses: list[str], record: Path | None, transport: str, *, duplex: bool) -> None:
    """Serve until SIGTERM."""
    headers, bodies = answers(addresses, Kind.REQUEST_HEADERS if duplex else Kind.REQUEST_BODY)
    passing = Passing()
    methods = (
        Method(
            EXT_PROC_SERVICE,
            "Process",
            lambda: EchoSession(bodies, passing) if duplex else NoOpSession(headers, bodies),
        ),
        Method(ACCESS_LOG_SERVICE, "StreamAccessLogs", lambda: DiscardSession(record)),
    )
    server = GrpcServer(methods, [listen], transport)
    await server.start()
    await server.set_ready(ready=True)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await server.stop(0)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("listen", help="address of the server, such as unix:/path")
    parser.add_argument("endpoint", nargs="+", help="ip:port that a pick may name")
    parser.add_argument("--record", type=Path, help="file for the first access-log message")
    parser.add_argument(
        "--transport", default="auto", choices=("auto", "queue", "aio"), help="as in kvpicker's settings"
    )
    parser.add_argument("--duplex", action="store_true", help="echo bodies, as full duplex wants it")
    arguments = parser.parse_args()
    asyncio.run(
        serve(arguments.listen, arguments.endpoint, arguments.record, arguments.transport, duplex=arguments.duplex)
    )


if __name__ == "__main__":
    main()
