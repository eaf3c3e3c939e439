"""Canonical addresses."""

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.core import addresses

PORTS = st.integers(1, 65_535)


@given(st.ip_addresses(v=4), PORTS)
def test_ipv4_is_written_as_it_is(ip: ipaddress.IPv4Address, port: int) -> None:
    """An IPv4 address has one notation."""
    assert addresses.canonical(f"{ip}:{port}") == f"{ip}:{port}"


@given(st.ip_addresses(v=6), PORTS)
def test_ipv6_is_written_as_envoy_writes_it(ip: ipaddress.IPv6Address, port: int) -> None:
    """Every notation of an IPv6 address becomes that of inet_ntop, in brackets."""
    expected = f"[{socket.inet_ntop(socket.AF_INET6, ip.packed)}]:{port}"
    for written in (ip.exploded, ip.exploded.upper(), ip.compressed):
        assert addresses.canonical(f"[{written}]:{port}") == expected


@given(st.one_of(st.integers(0, 2**32), st.integers(0xFFFF << 32, (0xFFFF << 32) + 2**32 - 1)), PORTS)
def test_embedded_ipv4_is_written_as_envoy_writes_it(number: int, port: int) -> None:
    """IPv4-mapped and IPv4-compatible addresses keep the dotted notation of inet_ntop."""
    ip = ipaddress.IPv6Address(number)
    expected = f"[{socket.inet_ntop(socket.AF_INET6, ip.packed)}]:{port}"
    assert addresses.canonical(f"[{ip.exploded}]:{port}") == expected


@given(st.ip_addresses(), PORTS)
def test_canonical_is_idempotent(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    """A canonical address is its own canonical form, and `join` agrees with `canonical`."""
    once = addresses.join(str(ip), port)
    assert addresses.canonical(once) == once


@given(st.text())
def test_any_text_gives_an_address_or_a_value_error(text: str) -> None:
    """No text makes it raise anything but ValueError."""
    try:
        result = addresses.canonical(text)
    except ValueError:
        return
    assert addresses.canonical(result) == result


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        pytest.param("engine:8000", "not a host name: Envoy's override_host", id="host name"),
        pytest.param("10.0.0.11", "has no port", id="no port"),
        pytest.param(":8000", "has no port", id="no host"),
        pytest.param("10.0.0.11:", "not a port number", id="empty port"),
        pytest.param("10.0.0.11:٨٠", "not a port number", id="digits of another script"),
        pytest.param("10.0.0.11:8_0", "not a port number", id="underscore in port"),
        pytest.param("10.0.0.11:0", "outside 1..65535", id="port 0"),
        pytest.param("10.0.0.11:65536", "outside 1..65535", id="port too large"),
        pytest.param("fd00::10:8000", "needs brackets", id="IPv6 without brackets"),
        pytest.param("[fe80::1%eth0]:8000", "has a zone", id="zone"),
        pytest.param("010.0.0.1:8000", "not an IP address", id="octal IPv4"),
        pytest.param("http://10.0.0.11:8000", "is a URL", id="URL"),
    ],
)
def test_refusals_say_what_to_write(text: str, advice: str) -> None:
    """What cannot be an endpoint is refused with advice."""
    with pytest.raises(ValueError, match=advice):
        addresses.canonical(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:0", "127.0.0.1:0"), ("[0::0]:9002", "[::]:9002"), ("unix:/run/k.sock", "unix:/run/k.sock")],
    ids=["free port", "IPv6", "socket"],
)
def test_a_server_may_listen_on_ports_and_sockets(text: str, expected: str) -> None:
    """A server address is an ip:port, port 0 included, or the absolute path of a Unix socket."""
    assert addresses.listening(text) == expected


@pytest.mark.parametrize("text", ["unix:k.sock", "unix:/run/", "localhost:1", "9002"])
def test_a_server_cannot_listen_on_anything_else(text: str) -> None:
    """Relative sockets and host names are refused."""
    with pytest.raises(ValueError, match=r"absolute path|not an IP address|no port"):
        addresses.listening(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.11:8000", "10.0.0.11:8000"),
        ("[FD00:0::10]:8000", "[fd00::10]:8000"),
        ("engine:8000", "engine:8000"),
        ("Engine-0.Engines.svc.:8000", "engine-0.engines.svc.:8000"),
        ("vllm_0.local:8000", "vllm_0.local:8000"),
        ("1.engines:8000", "1.engines:8000"),
    ],
)
def test_an_endpoint_may_be_listed_by_name(text: str, expected: str) -> None:
    """Names in small letters, addresses in canonical notation."""
    assert addresses.named(text) == expected
    host, _, port = text.rpartition(":")
    assert addresses.join_named(host, int(port)) == expected


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("10.0.0.999:8000", "neither an IP address nor a host name"),
        ("10.0.0:8000", "neither"),
        ("-engine:8000", "neither"),
        ("engine..svc:8000", "neither"),
        ("http://engine:8000", "is a URL"),
        (f"{'a' * 64}:8000", "neither"),
        (f"{'a.' * 127}a:8000", "neither"),
        ("ünicode:8000", "neither"),
        ("engine:0", "outside 1..65535"),
        ("engine", "no port"),
        ("[fe80::1%eth0]:8000", "zone"),
        ("0.0.0.0:8000", "no single host"),
        ("[::]:8000", "no single host"),
        ("224.0.0.1:8000", "no single host"),
        ("[ff02::1]:8000", "no single host"),
        ("255.255.255.255:8000", "no single host"),
    ],
)
def test_what_is_neither_address_nor_name_is_refused(text: str, advice: str) -> None:
    """With advice; a mistyped address is not taken for a name."""
    with pytest.raises(ValueError, match=advice):
        addresses.named(text)


@given(st.text())
def test_any_text_gives_a_named_address_or_a_value_error(text: str) -> None:
    """No text makes it raise anything else, and what it returns it accepts."""
    try:
        result = addresses.named(text)
    except ValueError:
        return
    assert addresses.named(result) == result
