"""Host names in lists of endpoints become addresses, and stay current."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from ext_proc.config.dns import DnsConfig
from ext_proc.core.pool import EndpointSpec
from ext_proc.sources import dns
from ext_proc.sources.dns import HostNames, NameUnknownError, SystemResolver
from tests.waiting import until

HOST = "engine-a.example"
NAME = f"{HOST}:8000"
QUICK = DnsConfig(interval_s=0.1, forget_s=0.0)


class Names:
    """A name service that says what a test wants it to say."""

    def __init__(self, *found: str) -> None:
        self.answer: Iterable[str] | Exception | None = found
        self.asked: list[str] = []

    async def resolve(self, host: str) -> Iterable[str]:
        """Answer, or never if there is no answer."""
        self.asked.append(host)
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer


class Followed:
    """Host names that are followed, with what was reported of them."""

    def __init__(self, *found: str) -> None:
        self.service = Names(*found)
        self.changes = 0
        self.states: list[tuple[str, str]] = []
        self.now = 0.0
        self.hosts = HostNames(
            self.service,
            self._changed,
            lambda name, problem: self.states.append((name, problem)),
            rng=random.Random(7),
            clock=lambda: self.now,
        )
        self.specs = [EndpointSpec(address=NAME, kv_tokens=7)]

    def _changed(self) -> None:
        self.changes += 1

    async def follow(self, config: DnsConfig = QUICK, *specs: EndpointSpec) -> list[str]:
        """Follow the names among endpoints until each was asked for once; returns the addresses."""
        self.specs = list(specs) or self.specs
        self.hosts.configure(config)
        self.hosts.follow(self.specs)
        await until(lambda: all(host.tried for host in self.hosts._hosts.values()))
        return self.addresses

    async def asked_again(self) -> list[str]:
        """Wait for two more look-ups, of which the last one has been taken in; returns the addresses."""
        wanted = len(self.service.asked) + 2
        await until(lambda: len(self.service.asked) >= wanted)
        return self.addresses

    @property
    def addresses(self) -> list[str]:
        """The addresses of all endpoints."""
        return [spec.address for spec in self.hosts.expanded(self.specs)]


@pytest.fixture
async def followed() -> AsyncIterator[Followed]:
    """Make host names that resolve to one address."""
    made = Followed("10.0.0.31")
    yield made
    await made.hosts.close()


async def test_a_name_becomes_an_endpoint_by_its_address(followed: Followed) -> None:
    """What was said of the name holds for the address, and the name is remembered (E09)."""
    assert await followed.follow() == ["10.0.0.31:8000"]
    (spec,) = followed.hosts.expanded(followed.specs)
    assert (spec.name, spec.kv_tokens) == (NAME, 7)
    assert followed.changes == 1


async def test_a_name_that_moves_is_followed(followed: Followed) -> None:
    """The new address takes the old one's place; two addresses are two endpoints (E09)."""
    await followed.follow()
    followed.service.answer = ["10.0.0.32"]
    assert await followed.asked_again() == ["10.0.0.32:8000"]
    followed.service.answer = ["10.0.0.33", "10.0.0.32"]
    assert await followed.asked_again() == ["10.0.0.32:8000", "10.0.0.33:8000"]
    followed.service.answer = ["10.0.0.32", "10.0.0.33"]  # the order means nothing
    await followed.asked_again()
    assert followed.changes == 3


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (OSError("no server"), "unanswered"),
        (socket.gaierror(socket.EAI_AGAIN, "later"), "unanswered"),
        (ValueError("odd"), "failed"),
        (["nonsense"], "failed"),
    ],
)
async def test_while_nobody_answers_the_last_addresses_stay(followed: Followed, answer: Any, problem: str) -> None:
    """Without end, whatever the settings say of names that do not exist; it is told once, and so is the recovery."""
    await followed.follow()
    followed.service.answer = answer
    followed.now = 1e6
    assert await followed.asked_again() == ["10.0.0.31:8000"]
    assert followed.hosts.is_degraded
    assert followed.states == [(HOST, problem)]
    followed.service.answer = ["10.0.0.31"]
    await until(lambda: not followed.hosts.is_degraded)
    assert followed.states == [(HOST, problem), (HOST, "")]
    assert followed.changes == 1


@pytest.mark.parametrize("answer", [NameUnknownError(HOST), [], ["fe80::1%eth0"]])
async def test_a_name_that_is_gone_keeps_its_addresses_for_the_documented_time(followed: Followed, answer: Any) -> None:
    """NXDOMAIN may be a mistake of a moment (E09)."""
    await followed.follow(DnsConfig(interval_s=0.1, forget_s=60.0))
    followed.service.answer = answer
    assert await followed.asked_again() == ["10.0.0.31:8000"]
    followed.now = 59.9
    assert await followed.asked_again() == ["10.0.0.31:8000"]
    followed.now = 60.1
    assert await followed.asked_again() == []
    followed.service.answer = ["10.0.0.31"]
    assert await followed.asked_again() == ["10.0.0.31:8000"]


@pytest.mark.parametrize("blocked", ["0.0.0.0", "::", "224.0.0.1", "255.255.255.255"])
async def test_e09_an_answer_that_blocks_a_name_is_none(followed: Followed, blocked: str) -> None:
    """It would lead requests to whatever listens beside Envoy; the name keeps its address as if it were unknown."""
    await followed.follow(DnsConfig(interval_s=0.1, forget_s=60.0))
    followed.service.answer = [blocked]
    assert await followed.asked_again() == ["10.0.0.31:8000"]
    assert followed.states[-1] == (HOST, "unknown")
    followed.service.answer = [blocked, "10.0.0.32"]
    assert await followed.asked_again() == ["10.0.0.32:8000"]


async def test_a_look_up_that_hangs_ends(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last addresses stay meanwhile (E22)."""
    monkeypatch.setattr(dns, "TIMEOUT_S", 0.05)
    await followed.follow()
    followed.service.answer = None
    await until(lambda: followed.states == [(HOST, "timeout")])
    assert followed.addresses == ["10.0.0.31:8000"]


BOTH = ("10.0.0.31", "fd00::31", "fd00:0::0032", "10.0.0.32")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (DnsConfig(), ["10.0.0.31:8000", "10.0.0.32:8000"]),
        (DnsConfig(family="ipv4"), ["10.0.0.31:8000", "10.0.0.32:8000"]),
        (DnsConfig(family="ipv6"), ["[fd00::31]:8000", "[fd00::32]:8000"]),
        (DnsConfig(family="both"), ["10.0.0.31:8000", "10.0.0.32:8000", "[fd00::31]:8000", "[fd00::32]:8000"]),
        (DnsConfig(answers="one"), ["10.0.0.31:8000"]),
        (DnsConfig(answers="one", family="ipv6"), ["[fd00::31]:8000"]),
    ],
)
async def test_families_and_numbers_are_chosen_by_the_settings(config: DnsConfig, expected: list[str]) -> None:
    """A and AAAA, all or one, in canonical notation (E07)."""
    followed = Followed(*BOTH)
    assert await followed.follow(config) == expected
    await followed.hosts.close()


async def test_ipv6_alone_is_taken_by_default() -> None:
    """A name that has no IPv4 address is no name without address."""
    followed = Followed("fd00::31")
    assert await followed.follow() == ["[fd00::31]:8000"]
    await followed.hosts.close()


async def test_one_address_is_kept_while_the_name_has_it() -> None:
    """Another order, or another lower one, is no reason to leave a warm cache."""
    followed = Followed("10.0.0.32")
    config = DnsConfig(interval_s=0.1, answers="one")
    assert await followed.follow(config) == ["10.0.0.32:8000"]
    followed.service.answer = ["10.0.0.31", "10.0.0.32"]
    assert await followed.asked_again() == ["10.0.0.32:8000"]
    followed.service.answer = ["10.0.0.31", "10.0.0.30"]
    assert await followed.asked_again() == ["10.0.0.30:8000"]
    await followed.hosts.close()


async def test_several_ports_of_one_name_are_asked_for_once(followed: Followed) -> None:
    """They are endpoints of their own (E18), and end with the list."""
    ports = [EndpointSpec(address=f"{HOST}:{port}") for port in (8000, 8001, 8002)]
    found = await followed.follow(DnsConfig(), *ports)
    assert found == ["10.0.0.31:8000", "10.0.0.31:8001", "10.0.0.31:8002"]
    assert followed.service.asked == [HOST]
    followed.hosts.follow([])
    assert followed.addresses == []
    assert followed.hosts._tasks == {}


async def test_an_address_listed_by_itself_goes_before_a_name(followed: Followed) -> None:
    """What is said of it holds; one address is one endpoint (E20)."""
    literal = EndpointSpec(address="10.0.0.31:8000", kv_tokens=9)
    for listed in ([literal, followed.specs[0]], [followed.specs[0], literal]):
        await followed.follow(DnsConfig(), *listed)
        (spec,) = followed.hosts.expanded(listed)
        assert (spec.kv_tokens, spec.name) == (9, "")


async def test_two_names_of_one_address_are_one_endpoint(followed: Followed) -> None:
    """The first one in the list counts."""
    await followed.follow(DnsConfig(), followed.specs[0], EndpointSpec(address="other.example:8000", kv_tokens=9))
    (spec,) = followed.hosts.expanded(followed.specs)
    assert spec.kv_tokens == 7


async def test_a_name_is_unanswered_until_somebody_says_anything(followed: Followed) -> None:
    """An answer that there is no such name is one; silence is none."""
    followed.service.answer = OSError("no server")
    await followed.follow()
    assert followed.hosts.unanswered(followed.specs)
    followed.service.answer = NameUnknownError(HOST)
    await followed.asked_again()
    assert not followed.hosts.unanswered(followed.specs)
    assert not followed.hosts.unanswered([EndpointSpec(address="10.0.0.1:1")])


async def test_the_start_waits_for_the_first_answers_but_not_for_ever(followed: Followed) -> None:
    """Whoever never answers holds nobody up."""
    followed.service.answer = None
    followed.hosts.follow(followed.specs)
    waiting = asyncio.create_task(followed.hosts.first(2.0))
    await until(lambda: bool(followed.service.asked))
    assert not waiting.done()
    followed.now = 2.1
    await waiting


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST"])
async def test_the_system_knows_localhost(host: str) -> None:
    """For real: with the operating system's resolver."""
    assert {"127.0.0.1", "::1"} & set(await SystemResolver().resolve(host))


async def test_the_system_tells_a_name_that_does_not_exist() -> None:
    """`.invalid` never does (RFC 2606); without a name server nobody can tell, which is the other error."""
    with pytest.raises((NameUnknownError, OSError)):
        await SystemResolver().resolve("no-such-engine.invalid")


async def test_look_ups_that_hang_take_a_bounded_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further ones fail at once until a thread is free again; the threads keep no process alive."""
    release = threading.Event()

    def ask(host: str) -> set[str]:
        release.wait(20)
        return {"10.0.0.1"}

    monkeypatch.setattr(dns, "_ask", ask)
    resolver = SystemResolver()
    hanging = [asyncio.create_task(resolver.resolve(f"h{number}")) for number in range(dns.THREADS)]
    named = lambda: [thread for thread in threading.enumerate() if thread.name.startswith("look up h")]  # noqa: E731
    await until(lambda: len(named()) == dns.THREADS)
    assert all(thread.daemon for thread in named())
    with pytest.raises(BlockingIOError):
        await resolver.resolve("one-more")
    hanging.pop().cancel()  # who gave up does not free the thread
    with pytest.raises(BlockingIOError):
        await resolver.resolve("one-more")
    release.set()
    assert await asyncio.gather(*hanging) == [{"10.0.0.1"}] * len(hanging)
    await until(lambda: not named())
    assert await resolver.resolve("one-more") == {"10.0.0.1"}
