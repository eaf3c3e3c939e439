"""Where the publishers of an endpoint's KV events are, by what is configured for it and for its pool."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

import msgspec

from ext_proc.config import Config, KvEventsConfig, PoolConfig
from ext_proc.core.errors import ConfigError
from ext_proc.core.kv_events import Tier
from ext_proc.core.model import Endpoint

_LAST_PORT = 65_535


class Publishers(msgspec.Struct, frozen=True):
    """The publishers of one endpoint.

    Attributes:
        addresses: of each data-parallel rank: ZMQ address of the publisher, and where its events can be asked for
            again, if anywhere.
        topic: what the topics that count begin with.
        weights: what a cached token in a tier counts.
        is_pinned: whether requests name the rank that is to answer.
    """

    addresses: tuple[tuple[str, str | None], ...]
    topic: bytes
    weights: Mapping[Tier, float]
    is_pinned: bool = False


def publishers(endpoint: Endpoint, pool: PoolConfig | None) -> Publishers | None:
    """Find the publishers of an endpoint; None if its pool publishes nothing, or at no port that exists."""
    settings = pool.kv_events if pool is not None else None
    if settings is None:
        return None
    host, _, text = endpoint.address.rpartition(":")
    own = endpoint.metrics
    port = own.events_port or _port(int(text), settings.port, settings.port_offset)
    replay = own.replay_port or _port(int(text), settings.replay_port, settings.replay_port_offset)
    if port is None:
        return None
    addresses = tuple(
        (f"tcp://{host}:{port + rank}", None if replay is None else f"tcp://{host}:{replay + rank}")
        for rank in range(settings.ranks)
        if max(port, replay or 0) + rank <= _LAST_PORT
    )
    return Publishers(addresses, settings.topic.encode(), _weights(settings), settings.pin_rank)


def _port(own: int, port: int | None, offset: int | None) -> int | None:
    found = own + offset if port is None and offset is not None else port
    return found if found is not None and 1 <= found <= _LAST_PORT else None


def _weights(settings: KvEventsConfig) -> dict[Tier, float]:
    return {
        Tier.GPU: 1.0,
        Tier.CPU: settings.cpu_weight,
        Tier.DISK: settings.disk_weight,
        Tier.EXTERNAL: settings.external_weight,
    }


def is_installed() -> bool:
    """Tell whether the package that listening needs is installed."""
    return find_spec("zmq") is not None


def check_installed(config: Config) -> None:
    """Refuse a configuration that asks for what is not installed.

    Raises:
        ConfigError: that is so.
    """
    for name, pool in config.pools.items():
        if pool.kv_events is not None and not is_installed():
            raise ConfigError(
                "needs a package that is missing: pip install 'kvpicker[kv-events]'", path=f"pools.{name}.kv_events"
            )
