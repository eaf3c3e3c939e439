"""Where the publishers of an endpoint are."""

from __future__ import annotations

import pytest

from ext_proc.config import PoolConfig, parse
from ext_proc.core.errors import ConfigError
from ext_proc.core.kv_events import Tier
from ext_proc.core.model import Endpoint
from ext_proc.core.pool import Registry
from ext_proc.sources import kv_publishers
from ext_proc.sources.kv_publishers import check_installed, publishers


def one(settings: str, endpoint: str = "{address: '10.0.0.1:8000'}") -> tuple[Endpoint, PoolConfig]:
    """Make an endpoint and its pool."""
    config = parse(f"pools: {{p: {{endpoints: [{endpoint}], kv_events: {{{settings}}}}}}}")
    registry = Registry()
    registry.replace("p", config.pools["p"].specs)
    return registry.snapshot.endpoints[0], config.pools["p"]


@pytest.mark.parametrize(
    ("settings", "addresses"),
    [
        ("port: 5557", [("tcp://10.0.0.1:5557", None)]),
        ("port: 5557, replay_port: 5600", [("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5600")]),
        ("port_offset: 100, replay_port_offset: -10", [("tcp://10.0.0.1:8100", "tcp://10.0.0.1:7990")]),
        (
            "port: 5557, replay_port: 5600, ranks: 2",
            [("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5600"), ("tcp://10.0.0.1:5558", "tcp://10.0.0.1:5601")],
        ),
        ("port: 65535, ranks: 2", [("tcp://10.0.0.1:65535", None)]),
    ],
)
def test_ports_are_those_of_the_pool(settings: str, addresses: list[tuple[str, str | None]]) -> None:
    """A port or a distance from the endpoint's own, one further for each rank."""
    found = publishers(*one(settings))
    assert found is not None
    assert (list(found.addresses), found.is_pinned) == (addresses, False)


def test_requests_name_a_rank_where_that_is_configured() -> None:
    """It is not the default: an engine that does not know the header would choose by itself."""
    found = publishers(*one("port: 5557, ranks: 2, pin_rank: true"))
    assert found is not None
    assert found.is_pinned


def test_an_endpoint_may_have_ports_of_its_own() -> None:
    """What an endpoint says goes before what its pool says, IPv6 too."""
    own = "{address: '[fd00::1]:8000', kv_events_port: 7000, kv_replay_port: 7001}"
    found = publishers(*one("port: 5557, topic: kv", own))
    assert found is not None
    assert found.addresses == (("tcp://[fd00::1]:7000", "tcp://[fd00::1]:7001"),)
    assert (found.topic, found.weights[Tier.GPU], found.weights[Tier.CPU]) == (b"kv", 1.0, 0.8)


@pytest.mark.parametrize("settings", ["port_offset: 60000", "port_offset: -8000"])
def test_a_port_that_cannot_be_is_none(settings: str) -> None:
    """A distance that leads nowhere listens to nothing."""
    assert publishers(*one(settings)) is None


def test_other_pools_are_not_listened_to() -> None:
    """A pool without the setting publishes nothing, and one that is gone neither."""
    endpoint, _ = one("port: 1")
    assert publishers(endpoint, PoolConfig()) is None
    assert publishers(endpoint, None) is None


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for events without the package learns what to install; others need nothing."""
    with_events = parse("pools: {p: {endpoints: ['10.0.0.1:80'], kv_events: {port: 1}}}")
    check_installed(with_events)
    monkeypatch.setattr(kv_publishers, "find_spec", lambda _: None)
    check_installed(parse("pools: {p: {endpoints: ['10.0.0.1:80']}}"))
    with pytest.raises(ConfigError, match=r"kvpicker\[kv-events\]") as caught:
        check_installed(with_events)
    assert caught.value.path == "pools.p.kv_events"
