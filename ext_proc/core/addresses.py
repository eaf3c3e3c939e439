"""The one notation of an `ip:port` that kvpicker and Envoy agree on."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable
from typing import TypeAlias

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_PORT = 65_535

_LABEL = "[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}$)(?:{_LABEL}\.)*(?!\d+\.?$){_LABEL}\.?", re.ASCII)
"""What RFC 1123 allows, and underscores; a last label of digits alone is a mistyped IPv4 address."""

_EVERYBODY = ipaddress.IPv4Address("255.255.255.255")
_IPV4_MAPPED = 0xFFFF
_LARGEST_LAST_GROUP = 0xFFFF


@functools.lru_cache(maxsize=4096)
def canonical(text: str) -> str:
    """Write an endpoint's address as Envoy prints it: `10.0.0.11:8000` or `[fd00::10]:8000`.

    Envoy's override_host compares addresses as text, so each address must have one notation: that of
    inet_ntop (RFC 5952 with dotted IPv4-mapped addresses).

    Raises ValueError with advice for host names, missing or impossible ports and IPv6 without brackets.
    """
    host, port = _split(text.strip())
    return join(host, port)


def join(host: str, port: int) -> str:
    """Make the canonical `ip:port` of an endpoint from an IP literal, brackets or not, and a port.

    Raises ValueError like `canonical`.
    """
    return _join(host, port, 1, ": Envoy's override_host knows endpoints by their resolved address only")


def named(text: str) -> str:
    """Write an endpoint's address that may be a host name and a port: as `canonical` does, or `name:port`.

    Raises ValueError with advice.
    """
    host, port = _split(text.strip())
    return join_named(host, port)


def join_named(host: str, port: int) -> str:
    """Make an endpoint's address from an IP literal or a host name, and a port.

    Raises ValueError with advice.
    """
    if is_host_name(host):
        return f"{host.lower()}:{_checked_port(port, 1)}"
    if not _is_literal(host):
        raise ValueError(f"`{host}` is neither an IP address nor a host name")
    if not is_one_host(host):
        raise ValueError(f"`{host}` is the address of no single host; write that of the engine")
    return join(host, port)


def is_host_name(host: str) -> bool:
    """Tell a host name from an IP address and from what is neither."""
    return _HOST_NAME.fullmatch(host) is not None


def is_one_host(host: str) -> bool:
    """Tell whether an IP literal, brackets or not, can be an engine's: not one that means none, all or many hosts."""
    address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    return not (address.is_unspecified or address.is_multicast or address == _EVERYBODY)


def listening(text: str) -> str:
    """Check an address to listen on: `ip:port` (port 0 takes a free one) or `unix:/absolute/path`.

    Raises ValueError with advice.
    """
    text = text.strip()
    if text.startswith("unix:"):
        if not text.startswith("unix:/") or text.endswith("/"):
            raise ValueError(f"`{text}` needs an absolute path of a socket, as in unix:/run/kvpicker.sock")
        return text
    host, port = _split(text)
    return _join(host, port, 0, "")


def network(text: str) -> Network:
    """Read a network, as in `10.0.0.0/8` or `fd00::/8`; a single address is a network of one.

    Raises ValueError with advice.
    """
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError as error:
        raise ValueError(f"{error}; write a network as in 10.0.0.0/8 or fd00::/8") from None


def within(text: str, networks: Iterable[Network]) -> bool:
    """Tell whether the IP of an `ip:port` lies in one of the networks; what is no address lies in none."""
    host = text.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    plain = getattr(address, "ipv4_mapped", None) or address
    return any(plain in network for network in networks)


def _checked_port(port: int, lowest: int) -> int:
    if not lowest <= port <= MAX_PORT:
        raise ValueError(f"port {port} is outside {lowest}..{MAX_PORT}")
    return port


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _join(host: str, port: int, lowest_port: int, why_literal: str) -> str:
    _checked_port(port, lowest_port)
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise ValueError(
            f"`{host}` is not an IP address; write an IPv4 or IPv6 literal, not a host name{why_literal}"
        ) from None
    if isinstance(address, ipaddress.IPv4Address):
        return f"{address}:{port}"
    if address.scope_id is not None:
        raise ValueError(f"`{host}` has a zone; only addresses that mean the same everywhere can be used")
    return f"[{_ipv6_text(address)}]:{port}"


def _split(text: str) -> tuple[str, int]:
    if "://" in text:
        raise ValueError(f"`{text}` is a URL; write ip:port alone, as in 10.0.0.11:8000")
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError(f"`{text}` has no port; write ip:port, as in 10.0.0.11:8000")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"`{text}` needs brackets around its IPv6 address, as in [fd00::10]:8000")
    if not (port.isascii() and port.isdigit() and len(port) <= len(str(MAX_PORT))):
        raise ValueError(f"`{port}` in `{text}` is not a port number")
    return host, int(port)


def _ipv6_text(address: ipaddress.IPv6Address) -> str:
    number = int(address)
    prefix, low = number >> 32, number & 0xFFFF_FFFF
    if prefix == _IPV4_MAPPED:
        return f"::ffff:{ipaddress.IPv4Address(low)}"
    if prefix == 0 and low > _LARGEST_LAST_GROUP:
        return f"::{ipaddress.IPv4Address(low)}"
    return address.compressed
