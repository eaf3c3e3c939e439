"""What probes, metrics and time say of endpoints reaches their health."""

from __future__ import annotations

import errno
import time

import pytest

from ext_proc.assembly import build_core
from ext_proc.config import Config, parse
from ext_proc.core.health_states import HealthState, Verdict
from ext_proc.core.model import Ending
from ext_proc.core.observer import NoObserver
from ext_proc.core.pool import EndpointSpec
from ext_proc.core.sleepers import Witness
from ext_proc.core.slowness import slowness
from ext_proc.ops import families
from ext_proc.ops.metrics import Metrics
from ext_proc.probing import COMPARE_S, Probing
from ext_proc.sleeping import Sleeping
from ext_proc.sources.api_keys import ApiKeys
from ext_proc.sources.probe_ask import Finding
from ext_proc.sources.scrape_fetch import ScrapeError
from tests.unit.core.builders import CHAT, Fleet, endpoints

GOOD, FAILED = Finding(Verdict.GOOD, "http_200"), Finding(Verdict.FAILED, "refused")


def config(probes: str = "{}") -> Config:
    """Make a configuration."""
    return parse(f"health: {{probes: {probes}}}\npools: {{p: {{endpoints: ['10.0.0.1:80'], engine: triton}}}}")


def _unsaid(*_: object, **__: object) -> None:
    """Say nothing."""


class Wired:
    """A fleet whose health is fed by a probing that never runs."""

    def __init__(self, engine: str = "vllm", count: int = 3) -> None:
        self.fleet = Fleet(count)
        self.metrics = Metrics(frozenset)
        self.engine = engine
        core, keys = build_core(config(), NoObserver()), ApiKeys()
        sleeping = Sleeping(config(), core, keys.headers, self.metrics.wake_called, _unsaid)
        self.probing = Probing(config(), self.fleet, lambda _: self.engine, self.metrics, keys, sleeping)
        self.one, *self.others = self.fleet.endpoints

    def state(self) -> HealthState:
        """Return the state of the first endpoint."""
        return self.fleet.health.state(self.one.slot)


def test_probes_count_and_teach() -> None:
    """Each is counted; two that failed eject; one that could not be sent says nothing."""
    wired = Wired()
    for finding in (GOOD, None, FAILED, None, FAILED):
        wired.probing.probed(wired.one, finding)
    assert wired.state() is HealthState.EJECTED
    assert dict(wired.metrics.tallies[families.PROBES].counts) == {("good",): 1, ("local",): 2, ("failed",): 2}


def test_what_is_late_is_not_laid_on_a_successor() -> None:
    """A probe may end when another engine has the address."""
    wired = Wired()
    wired.fleet.fill("p", *(endpoint.address for endpoint in wired.others), models=CHAT)
    wired.fleet.fill("p", *(endpoint.address for endpoint in wired.fleet.endpoints), wired.one.address, models=CHAT)
    successor = wired.fleet.registry.snapshot.by_address[wired.one.address]
    assert (successor.slot, successor.generation > wired.one.generation) == (wired.one.slot, True)
    for _ in range(2):
        wired.probing.probed(successor, GOOD)
    for _ in range(3):
        wired.probing.probed(wired.one, FAILED)
        wired.probing.scraped(wired.one, "timeout", None)
    assert wired.state() is HealthState.READY


@pytest.mark.parametrize(
    ("problem", "cause", "engine", "expected"),
    [
        ("timeout", None, "vllm", HealthState.EJECTED),
        ("unreachable", OSError(errno.ECONNREFUSED, ""), "vllm", HealthState.EJECTED),
        ("unreachable", OSError(errno.EMFILE, ""), "vllm", HealthState.READY),
        ("http_404", None, "vllm", HealthState.READY),
        ("timeout", None, "", HealthState.READY),
    ],
)
def test_metrics_that_cannot_be_read_weigh_with_probes(
    problem: str, cause: OSError | None, engine: str, expected: HealthState
) -> None:
    """If it is the process that may be gone, and its metrics could be read once."""
    wired = Wired(engine)
    error = ScrapeError(problem)
    error.__cause__ = cause
    wired.probing.scraped(wired.one, problem, error)
    wired.probing.probed(wired.one, FAILED)
    assert wired.state() is expected
    wired.probing.scraped(wired.one, "", None)


def test_endpoints_are_compared_with_their_peers() -> None:
    """From time to time, by what a token of theirs takes."""
    wired = Wired()
    reputations = wired.fleet.picker.knowledge.reputations
    for endpoint, seconds in zip(wired.fleet.endpoints, (5.0, 1.0, 1.2), strict=True):
        reputations.note(endpoint, Ending.OK, 0.0, seconds=seconds, tokens=100)
    wired.probing.tick(time.monotonic())
    assert wired.state() is HealthState.READY
    wired.probing.tick(time.monotonic() + COMPARE_S + 1)
    assert wired.state() is HealthState.DEGRADED


def test_slowness_is_relative_to_those_that_serve_the_same() -> None:
    """A large model is no slow endpoint; of two, the quicker one is the measure; nobody known is nobody slow."""
    small, large = endpoints(4, models=frozenset({"s"})), endpoints(2, models=frozenset({"l"}))
    fleet = [*small, *large]
    assert slowness(fleet, [0.1, 0.2, None, 0.4, 5.0, 1.0]) == [0.5, 1.0, 1.0, 2.0, 5.0, 1.0]
    assert slowness(fleet, [None] * 6) == [1.0] * 6
    assert slowness(small[:2], [0.0, 0.0]) == [1.0, 1.0]


def test_the_engine_is_the_one_that_was_seen_or_else_configured() -> None:
    """So that each is asked at its own page."""
    wired = Wired()
    assert wired.probing._kind(wired.one) == "vllm"
    wired.engine = ""
    assert wired.probing._kind(wired.one) == "triton"


def test_probes_that_say_nothing_are_told() -> None:
    """Degraded: requests are answered by engines whose probes fail."""
    wired = Wired()
    assert not wired.probing.is_degraded(time.monotonic())
    for _ in range(2):
        wired.probing.probed(wired.one, FAILED)
    now = time.monotonic()
    wired.fleet.health.note(wired.one, Ending.OK, now + 1, sent=now + 0.5)
    assert wired.probing.is_degraded(time.monotonic())


def test_a_process_that_stood_still_blames_nobody() -> None:
    """What was overdue when it went on is not held against engines; what fails later is."""
    wired = Wired()
    now = time.monotonic()
    wired.probing._ticked_at = now - 60.0
    for _ in range(2):
        wired.probing.probed(wired.one, FAILED)
    wired.probing.tick(time.monotonic())
    wired.probing.scraped(wired.one, "timeout", None)
    wired.probing.probed(wired.one, FAILED)
    assert wired.fleet.health.all_ready
    wired.probing._excused_until = now
    for _ in range(2):
        wired.probing.probed(wired.one, FAILED)
    assert wired.state() is HealthState.EJECTED


def test_a_changed_configuration_counts() -> None:
    """Failures that eject, for one."""
    wired = Wired()
    wired.probing.configure(config("{failures: 3}"))
    wired.probing.probed(wired.one, GOOD)
    for _ in range(2):
        wired.probing.probed(wired.one, FAILED)
    assert wired.state() is HealthState.READY


def test_no_word_of_a_sleep_grows_old_while_this_process_stands_still() -> None:
    """Frozen for a minute it has heard of nobody, and takes no sleeper for awake before each could be heard again."""
    core, metrics, keys = build_core(config(), NoObserver()), Metrics(frozenset), ApiKeys()
    sleeping = Sleeping(config(), core, keys.headers, metrics.wake_called, _unsaid)
    probing = Probing(config(), core, lambda _: "vllm", metrics, keys, sleeping)
    core.follow(core.registry.replace("p", [EndpointSpec(address="10.0.0.1:80")]))
    one = core.registry.snapshot.endpoints[0]
    sleeping.told(one, Witness.METRICS, asleep=True)
    now = time.monotonic()
    probing.tick(now)
    probing.tick(now + 60.0)
    probing.tick(now + 60.5)
    assert one.slot in core.sleepers
    probing.tick(now + 62.0)
    assert one.slot not in core.sleepers
