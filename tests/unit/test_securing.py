"""Certificates reach the server, and what goes wrong with them the log."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from ext_proc.config import parse
from ext_proc.core.errors import ConfigError
from ext_proc.ops.events import Event
from ext_proc.securing import Securing
from ext_proc.sources.certificates import Certificates
from ext_proc.wire.server import GrpcServer
from tests.certificates import Authority, presented

SMALL = "pools: {p: {endpoints: ['10.0.0.1:80']}}\nlisten: ['127.0.0.1:0']\n"


async def test_changed_certificates_are_presented(tmp_path: Path) -> None:
    """A change is put into effect and logged; a fault is logged, and shows until it is mended."""
    said: list[tuple[Event, dict[str, Any]]] = []
    authority = Authority()
    certificate, key = authority.issue("first").write(tmp_path)
    config = parse(f"{SMALL}tls: {{certificate: {certificate}, key: {key}, plaintext: ['127.0.0.1:0']}}\n")
    securing = Securing(config.tls, lambda event, **fields: said.append((event, fields)))
    server = GrpcServer([], securing.doors(config))
    await server.start()
    try:
        assert await presented(server.addresses[0]) == "first"
        assert len(server.plain_addresses) == 1
        second = authority.issue("second")
        securing._files._found(Certificates(second.key, second.certificate, None))  # type: ignore[union-attr]
        assert await presented(server.addresses[0]) == "second"
        assert (said, securing.is_degraded) == ([(Event.CERTIFICATES_CHANGED, {})], False)
        for _ in range(3):
            securing._files._failed(ConfigError("broken", path="tls.key"))  # type: ignore[union-attr]
        assert said[1:] == [(Event.CERTIFICATES_REJECTED, {"error": "tls.key: broken"})]
        assert securing.is_degraded
        assert await presented(server.addresses[0]) == "second"
    finally:
        await server.stop(0)


async def test_without_the_section_nothing_is_encrypted() -> None:
    """There is nothing to watch and nothing to be wrong."""
    config = parse(SMALL)
    securing = Securing(config.tls, print)
    await securing.run()
    assert (securing.tls, securing.is_degraded, securing.doors(config).tls) == (None, False, None)


def test_certificates_that_cannot_be_used_end_the_start(tmp_path: Path) -> None:
    """Rather than a server that nobody can talk to."""
    config = parse(f"{SMALL}tls: {{certificate: {tmp_path}/a, key: {tmp_path}/b}}\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        Securing(config.tls, print)


@pytest.mark.parametrize(
    ("left", "reminded"),
    [(dt.timedelta(days=1), []), (dt.timedelta(hours=2), [False]), (dt.timedelta(hours=-2), [True])],
)
def test_a_certificate_that_ends_is_told_of(tmp_path: Path, left: dt.timedelta, reminded: list[bool]) -> None:
    """Once a day, when less than a fifth of its time is left; kvpicker is degraded when it is over."""
    said: list[tuple[Event, dict[str, Any]]] = []
    authority = Authority()
    certificate, key = authority.issue("first", left=left).write(tmp_path)
    config = parse(f"{SMALL}tls: {{certificate: {certificate}, key: {key}}}\n")
    securing = Securing(config.tls, lambda event, **fields: said.append((event, fields)))
    securing._look()
    securing._look()
    assert [fields["expired"] for event, fields in said if event is Event.CERTIFICATE_EXPIRES] == reminded
    assert securing.is_degraded is (True in reminded)
    second = authority.issue("second")
    securing._files._found(Certificates(second.key, second.certificate, None))  # type: ignore[union-attr]
    assert not securing.is_degraded
    assert said[-1][0] is Event.CERTIFICATES_CHANGED
