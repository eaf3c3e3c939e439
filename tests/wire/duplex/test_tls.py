"""Gateways that speak TLS to kvpicker: verified, mutual, or in blind trust as some do; and certificates that change."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ext_proc.sources import certificates
from tests.certificates import Authority, presented
from tests.waiting import until
from tests.wire.duplex.conftest import DuplexStack, Flavour, running
from tests.wire.duplex.gateways import TYPES, ai_gateway, istio, kgateway
from tests.wire.duplex.raw import Ask

pytestmark = pytest.mark.envoy

BLIND: dict[str, Any] = {}
"""What Envoy AI Gateway and kgateway send: neither verification nor ALPN of their own."""


def over_tls(flavour: Flavour, context: dict[str, Any], **limits: int) -> Flavour:
    """Let a gateway reach its processor by TLS."""

    def made(processor: str, engines: Any, **modes: str) -> dict[str, Any]:
        config = flavour(processor, engines, **modes)
        upstream = {"@type": f"{TYPES}.transport_sockets.tls.v3.UpstreamTlsContext", "sni": "picker.test", **context}
        for cluster in config["static_resources"]["clusters"]:
            if cluster["name"] == "extproc":
                cluster["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": upstream}
                for options in cluster["typed_extension_protocol_options"].values():
                    options["common_http_protocol_options"] = limits
        return config

    return made


def verifying(folder: Path, authority: Authority, client: Authority | None = None) -> dict[str, Any]:
    """Let a gateway verify whom it talks to, and prove itself."""
    trusted = folder / "trusted.crt"
    trusted.write_bytes(authority.certificate)
    names = [{"san_type": "DNS", "matcher": {"exact": "picker.test"}}]
    validation = {"trusted_ca": {"filename": str(trusted)}, "match_typed_subject_alt_names": names}
    common: dict[str, Any] = {"alpn_protocols": ["h2"], "validation_context": validation}
    if client is not None:
        certificate, key = client.issue("gateway").write(folder / "gateway")
        pair = {"certificate_chain": {"filename": str(certificate)}, "private_key": {"filename": str(key)}}
        common["tls_certificates"] = [pair]
    return {"common_tls_context": common}


async def answered(stack: DuplexStack, name: str, chat: bytes) -> int:
    """Send a chat and return the status of its answer."""
    answer = await stack.ask(Ask(name, body=chat))
    assert answer is not None
    return answer.status


@pytest.mark.parametrize("flavour", [istio, ai_gateway, kgateway])
async def test_a_gateway_that_does_not_verify(tmp_path: Path, chat: bytes, flavour: Flavour) -> None:
    """With nothing configured but `tls: {}` it is served; none of them sets ALPN."""
    async with running(tmp_path, over_tls(flavour, BLIND), extra="tls: {}", settles=flavour is not kgateway) as stack:
        assert await answered(stack, "a", chat) == 200
        assert sum(len(engine.got) for engine in stack.engines) == 1


@pytest.mark.parametrize("transport", ["queue", "aio"])
async def test_a_gateway_that_verifies_and_proves_itself(tmp_path: Path, chat: bytes, transport: str) -> None:
    """Both sides show certificates of an authority that the other trusts."""
    ours, theirs = Authority("ours"), Authority("theirs")
    certificate, key = ours.issue("picker").write(tmp_path / "picker")
    (tmp_path / "clients.crt").write_bytes(theirs.certificate)
    extra = f"tls: {{certificate: {certificate}, key: {key}, client_ca: {tmp_path}/clients.crt}}"
    envoy = over_tls(istio, verifying(tmp_path, ours, theirs))
    async with running(tmp_path, envoy, extra=extra, transport=transport) as stack:
        assert await answered(stack, "a", chat) == 200


@pytest.mark.parametrize("transport", ["queue", "aio"])
async def test_certificates_change_under_load(
    tmp_path: Path, chat: bytes, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that come and go all the while see the new ones, and no request fails."""
    monkeypatch.setattr(certificates, "LOOK_S", 0.02)
    ours = Authority("ours")
    certificate, key = ours.issue("number 0").write(tmp_path / "picker")
    extra = f"tls: {{certificate: {certificate}, key: {key}}}"
    envoy = over_tls(istio, verifying(tmp_path, ours), max_requests_per_connection=3)
    statuses: list[int] = []
    async with running(tmp_path, envoy, extra=extra, transport=transport) as stack:
        over = asyncio.Event()

        async def load(client: int) -> None:
            while not over.is_set():
                statuses.append(await answered(stack, f"{client}-{len(statuses)}", chat))

        clients = [asyncio.create_task(load(client)) for client in range(4)]
        for number in range(1, 4):
            before = len(statuses)
            ours.issue(f"number {number}").write(tmp_path / "picker")
            await until(lambda wanted=number: len(stack.logged("certificates_changed")) == wanted)  # type: ignore[misc]
            assert await presented(stack.service.grpc_addresses[0]) == f"number {number}"
            await until(lambda done=before: len(statuses) >= done + 12)  # type: ignore[misc]
        over.set()
        await asyncio.gather(*clients)
        assert set(statuses) == {200}
        handshakes = await stack.envoy.stats("cluster.extproc.ssl.handshake")
        assert sum(handshakes.values()) >= len(statuses) // 3
        assert stack.logged("certificates_rejected") == []
