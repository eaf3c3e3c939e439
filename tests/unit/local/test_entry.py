"""The Envoy configuration of the local stack."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ext_proc.bootstrap import EnvoyOptions
from ext_proc.bootstrap.binary import find_envoy, validate
from ext_proc.core.errors import ConfigError
from ext_proc.local.entry import entry_config

OPTIONS = EnvoyOptions(listen="127.0.0.1:0", admin="127.0.0.1:0", endpoints=("127.0.0.1:1",))


def resources() -> Any:
    """Render and read back what Envoy is to run."""
    return yaml.safe_load(entry_config(OPTIONS, "127.0.0.1:2"))["static_resources"]


def test_two_stacks_never_share_a_port() -> None:
    """Envoy would take half of the connections of another Envoy on the same port."""
    assert resources()["listeners"][0]["enable_reuse_port"] is False


def test_the_way_around_kvpicker_is_on_loopback() -> None:
    """Nobody else may go past it."""
    direct = resources()["listeners"][1]
    assert direct["address"] == {"socket_address": {"address": "127.0.0.1", "port_value": 0}}


def test_the_way_around_kvpicker_leads_to_the_probe_alone() -> None:
    """The engines that people use cannot be reached by it."""
    cluster = resources()["clusters"][-1]
    (host,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert host["endpoint"]["address"]["socket_address"]["port_value"] == 2


def test_an_address_that_cannot_be_listened_on_is_refused() -> None:
    """The error is that of the options, before Envoy starts."""
    with pytest.raises(ConfigError, match="listen"):
        entry_config(EnvoyOptions(listen="nowhere"), "127.0.0.1:2")


@pytest.mark.envoy
def test_envoy_accepts_it() -> None:
    """The real binary validates the rendered configuration."""
    validate(entry_config(OPTIONS, "[::1]:2"), find_envoy())
