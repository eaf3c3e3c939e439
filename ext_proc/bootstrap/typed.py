"""Small helpers around envoy-data-plane's typed messages: extensions, durations, addresses."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import TypeVar

import betterproto2
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.google.protobuf import Any as AnyMessage

from ext_proc.core.errors import ConfigError

Message = TypeVar("Message", bound=betterproto2.Message)

UNIX = "unix:"
MAX_PORT = 65535


def packed(message: betterproto2.Message) -> AnyMessage:
    """Wrap a message as Envoy's extension points take it."""
    return AnyMessage.pack(message)


def extension(name: str, message: betterproto2.Message) -> core.TypedExtensionConfig:
    """An extension with its name, as `typed_extension_config` fields take it."""
    return core.TypedExtensionConfig(name=name, typed_config=packed(message))


def seconds(value: float) -> dt.timedelta:
    """A protobuf duration."""
    return dt.timedelta(seconds=value)


def split_address(text: str, *, path: str) -> tuple[str, int]:
    """Take `host:port` or `[ipv6]:port` apart; raises ConfigError naming the option `path`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{text!r}: put an IPv6 address in brackets", path=path)
    if not colon or not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise ConfigError(f"{text!r} is neither host:port nor unix:/path", path=path)
    return host, int(port)


def is_numeric(text: str) -> bool:
    """Tell whether an address needs no look-up of a name."""
    if text.startswith(UNIX):
        return True
    host, _, _ = text.rpartition(":")
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def address(text: str, *, path: str) -> core.Address:
    """An Envoy address from `host:port`, `[ipv6]:port` or `unix:/path`; raises ConfigError naming the option `path`."""
    if text.startswith(UNIX):
        return core.Address(pipe=core.Pipe(path=text.removeprefix(UNIX)))
    host, port = split_address(text, path=path)
    return core.Address(socket_address=core.SocketAddress(address=host, port_value=port))
