"""Where the time of one exchange goes: bytes of both messages through an ExtProcSession, in process, without Envoy."""

from __future__ import annotations

import argparse
import cProfile
import itertools
import pstats
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from benchmarks.bodies import LARGE, SMALL, chat_bodies
from benchmarks.messages import body_message, duplex_answer, duplex_request, headers_message
from benchmarks.noop import EchoSession
from benchmarks.parts import Parts, observed_fleet
from ext_proc.core.exchange import Exchange
from ext_proc.core.exchange_messages import Continue, Kind, Message, RequestHeaders
from ext_proc.core.exchange_policy import ExchangePolicy
from ext_proc.core.hashing import PromptHasher
from ext_proc.core.model import Decision
from ext_proc.core.prompts import classify, parse
from ext_proc.wire.codec import Encoder, decode
from ext_proc.wire.ext_proc import ExtProcSession
from ext_proc.wire.passing import Passing
from ext_proc.wire.transport import Reply

IN_FLIGHT = 32

Item = TypeVar("Item")


class Stopwatch:
    """Collects laps by name, in microseconds."""

    def __init__(self) -> None:
        self.laps: dict[str, list[float]] = {}
        self._began = 0

    def start(self) -> None:
        """Begin a lap."""
        self._began = time.perf_counter_ns()

    def lap(self, name: str) -> None:
        """End a lap and begin the next."""
        ended = time.perf_counter_ns()
        self.laps.setdefault(name, []).append((ended - self._began) / 1e3)
        self._began = time.perf_counter_ns()


class Stages:
    """Walks an exchange step by step, as session, exchange and picker do, and times each step."""

    def __init__(self, parts: Parts, watch: Stopwatch) -> None:
        self._core = parts.core
        self._observer = parts.observer
        self._watch = watch
        self._hasher = PromptHasher()
        self._encoder = Encoder(3)
        self._generator = random.Random(0)  # noqa: S311  breaks ties

    def walk(self, headers: bytes, body: bytes) -> str:
        """Go through one exchange; returns the decision's id."""
        watch, core = self._watch, self._core
        watch.start()
        begun = decode(headers)
        watch.lap("decode headers")
        assert isinstance(begun, RequestHeaders)  # noqa: S101  the message says so
        route = classify(begun.method, begun.head.path)
        watch.lap("classify")
        self._encoder.encode(Continue(Kind.REQUEST_HEADERS))
        watch.lap("encode first answer")
        event = decode(body)
        watch.lap("decode body")
        assert isinstance(event, Message) and route is not None  # noqa: PT018, S101  the messages say so
        request = parse(route, begun.head, event.body, complete=True)
        watch.lap("parse the prompt")
        chain = self._hasher.chain(request)
        watch.lap("(in pick) hash chain")
        core.index.depths(chain, core.registry.snapshot.endpoints.slots)
        watch.lap("(in pick) look up the chain")
        decision = core.picker.pick(request, time.monotonic(), self._generator)
        watch.lap("pick")
        assert isinstance(decision, Decision)  # noqa: S101  nothing removes candidates here
        self._observer.decided(decision, 0.0)
        watch.lap("count and remember")
        self._encoder.encode(Continue(Kind.REQUEST_BODY, decision, finished=True))
        watch.lap("encode second answer")
        return decision.id


def whole(parts: Parts, messages: Iterable[tuple[bytes, bytes]], watch: Stopwatch) -> None:
    """Send exchanges through sessions, as a transport does."""
    core, observer = parts.core, parts.observer
    encoder, passing, policy = Encoder(3), Passing(), ExchangePolicy()
    generator = random.Random(0)  # noqa: S311  breaks ties
    for number, (headers, body) in enumerate(messages):
        watch.start()
        exchange = Exchange(core.picker, core.feedback, observer, policy, time.monotonic, generator)
        session = ExtProcSession(exchange, encoder, observer, passing)
        session.receive(headers)
        session.receive(body)
        session.close(delivered=True)
        watch.lap("the whole session")
        if number % IN_FLIGHT == IN_FLIGHT - 1:
            end_leases(parts)


DUPLEX_STEPS = (
    "headers",
    "body",
    "end of the body, with the decision",
    "headers of the answer",
    "its body",
    "its end, with the outcome",
)


def whole_duplex(parts: Parts, bodies: Iterable[bytes], watch: Stopwatch) -> None:
    """Send exchanges in full duplex through sessions, and the same messages through those of the echo server."""
    core, observer = parts.core, parts.observer
    answers = {endpoint.address: duplex_answer(endpoint.address) for endpoint in core.registry.snapshot.endpoints}
    encoder, passing, policy = Encoder(1), Passing(), ExchangePolicy()
    picks = itertools.cycle([Reply(b"")])
    generator = random.Random(0)  # noqa: S311  breaks ties
    for body in bodies:
        request, picked = duplex_request(body), b""
        exchange = Exchange(core.picker, core.feedback, observer, policy, time.monotonic, generator)
        session, echo, steps = (
            ExtProcSession(exchange, encoder, observer, passing),
            EchoSession(picks, passing),
            iter(DUPLEX_STEPS),
        )
        for message in request:
            watch.start()
            reply = session.receive(message)
            watch.lap(f"(full duplex) {next(steps)}")
            picked = (isinstance(reply, Reply) and reply.message) or picked
        chosen = next(address for address in answers if address.encode() in picked)
        for message in answers[chosen]:
            watch.start()
            session.receive(message)
            watch.lap(f"(full duplex) {next(steps)}")
        session.close(delivered=True)
        watch.start()
        for message in (*request, *answers[chosen]):
            echo.receive(message)
        watch.lap("(full duplex) all of it in the echo server")


def end_leases(parts: Parts) -> None:
    """End what is in flight, as if outcomes had come."""
    parts.core.ledger.expire(float("inf"))


def profile(size: int, endpoints: int, exchanges: int, pause: float) -> dict[str, float]:
    """Return the median microseconds of each step."""
    watch = Stopwatch()
    with observed_fleet(endpoints) as parts:
        stages = Stages(parts, watch)
        for number, (headers, body) in enumerate(_messages(size, exchanges, pause)):
            stages.walk(headers, body)
            if number % IN_FLIGHT == IN_FLIGHT - 1:
                end_leases(parts)
        whole(parts, _messages(size, exchanges, pause), watch)
        whole_duplex(parts, _paced(chat_bodies(size), exchanges, pause), watch)
    return {name: statistics.median(laps) for name, laps in watch.laps.items()}


def functions(size: int, endpoints: int, exchanges: int) -> None:
    """Print the functions that take longest, by cProfile; it slows small functions down, so compare, do not add."""
    profiler = cProfile.Profile()
    with observed_fleet(endpoints) as parts:
        whole(parts, _messages(size, exchanges), Stopwatch())
        profiler.runcall(whole, parts, list(_messages(size, exchanges)), Stopwatch())
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(25)


def _messages(size: int, exchanges: int, pause: float = 0.0) -> Iterator[tuple[bytes, bytes]]:
    """Give the messages of exchanges, each after a pause that leaves caches cold, as they are in a server."""
    pairs = [(headers_message(len(body)), body_message(body)) for body in chat_bodies(size)]
    return _paced(pairs, exchanges, pause)


def _paced(items: Sequence[Item], count: int, pause: float) -> Iterator[Item]:
    for item in itertools.islice(itertools.cycle(items), count):
        if pause:
            time.sleep(pause)
        yield item


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", type=int, default=8)
    parser.add_argument("--exchanges", type=int, default=3000)
    parser.add_argument("--pause-ms", type=float, default=0.0, help="sleep before each exchange, for cold caches")
    parser.add_argument("--functions", action="store_true", help="break down by function instead of by step")
    arguments = parser.parse_args()
    for size, exchanges in ((SMALL, arguments.exchanges), (LARGE, arguments.exchanges // 10)):
        print(f"{size // 1024} KB, {arguments.endpoints} endpoints")
        if arguments.functions:
            functions(size, arguments.endpoints, exchanges)
            continue
        for name, median in profile(size, arguments.endpoints, exchanges, arguments.pause_ms / 1e3).items():
            print(f"  {name:48}{median:8.1f} us")


if __name__ == "__main__":
    main()
