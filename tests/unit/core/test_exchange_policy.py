"""What all exchanges share: who is told."""

from __future__ import annotations

import pytest

from ext_proc.core.addresses import network
from ext_proc.core.exchange_policy import ExchangePolicy

POLICY = ExchangePolicy(networks=(network("10.0.0.0/8"), network("fd00::/8")))


@pytest.mark.parametrize("asker", ["10.1.2.3:51234", "[fd00::1]:51234", "[::ffff:10.1.2.3]:51234"])
def test_clients_of_the_networks_are_told(asker: str) -> None:
    """IPv4, IPv6 and IPv4 as IPv6 sees it."""
    assert POLICY.explains_to(asker)


@pytest.mark.parametrize(
    "asker",
    ["", "11.0.0.1:51234", "[fe80::1]:1", "[::ffff:11.0.0.1]:1", "10.0.0.1", "/run/c.sock", "10.0.0:1", ":"],
)
def test_others_are_not(asker: str) -> None:
    """Nobody asks, another network, or no address at all."""
    assert not POLICY.explains_to(asker)


def test_by_default_nobody_is_told() -> None:
    """Without networks there are no explanations."""
    assert not ExchangePolicy().explains_to("127.0.0.1:1")
