"""Our own Envoys speak TLS to kvpicker in each profile: verified, mutual, in blind trust, refused."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from ext_proc.bootstrap import EnvoyOptions, to_yaml
from ext_proc.bootstrap.document import secrets_yaml
from ext_proc.bootstrap.options import PROFILES
from ext_proc.local.envoy import EnvoyProcess, find_envoy
from tests.certificates import Authority
from tests.envoys.builds import found_version
from tests.waiting import until
from tests.wire.stack import Stack, running_stack

pytestmark = pytest.mark.envoy


class Sides:
    """An authority for each side, with what the two of them configure of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ours, self.theirs = Authority("ours"), Authority("theirs")
        certificate, key = self.ours.issue("picker").write(folder / "picker")
        trust = folder / "trust"
        trust.mkdir()
        (trust / "ours.crt").write_bytes(self.ours.certificate)
        (folder / "clients.crt").write_bytes(self.theirs.certificate)
        self.theirs.issue("envoy").write(folder / "client")
        self.server = f"tls: {{certificate: {certificate}, key: {key}}}"
        self.mutual = f"tls: {{certificate: {certificate}, key: {key}, client_ca: {folder}/clients.crt}}"
        self.verifying: dict[str, Any] = {"tls_ca": f"{trust}/ours.crt", "tls_name": "picker.test"}
        self.proving: dict[str, Any] = {**self.verifying, "tls_client": f"{folder}/client"}


async def reaches_kvpicker(stack: Stack) -> bool:
    """Tell whether a request was picked for."""
    status, _, _ = await stack.chat("are you there?")
    return status == 200 and len(await stack.decisions()) == 1


async def handshakes(envoy: EnvoyProcess, cluster: str) -> int:
    """Count the TLS connections of a cluster of Envoy."""
    return sum((await envoy.stats(f"cluster.{cluster}.ssl.handshake")).values())


@pytest.mark.parametrize("profile", PROFILES)
async def test_both_sides_prove_themselves(tmp_path: Path, profile: str) -> None:
    """Exchanges, health checks and the access log all go through mutual TLS."""
    sides = Sides(tmp_path)
    async with running_stack(tmp_path, profile=profile, top=sides.mutual, **sides.proving) as stack:
        assert await reaches_kvpicker(stack)
        assert [line["ending"] for line in await stack.finished(1)] == ["ok"]
        assert await handshakes(stack.envoy, "kvpicker_processors") > 0
        await until(lambda: handshakes(stack.envoy, "kvpicker_access_log_0"))
        assert await stack.violations() == {}


@pytest.mark.parametrize("profile", PROFILES)
async def test_blind_trust_takes_the_certificate_that_kvpicker_made(tmp_path: Path, profile: str) -> None:
    """`tls: {}` and `--tls-unverified` are all that is needed to encrypt."""
    async with running_stack(tmp_path, profile=profile, top="tls: {}", tls_unverified=True) as stack:
        assert await reaches_kvpicker(stack)
        assert await handshakes(stack.envoy, "kvpicker_processors") > 0


@pytest.mark.parametrize("change", [{"tls_name": "another.test"}, {"tls_client": None}], ids=["name", "no client"])
async def test_who_cannot_prove_himself_is_not_spoken_to(tmp_path: Path, change: dict[str, Any]) -> None:
    """A certificate for another name, or none of the client: no exchange takes place, so Envoy fails closed."""
    sides = Sides(tmp_path)
    options = sides.proving | change
    async with running_stack(tmp_path, top=sides.mutual, failure_mode="closed", **options) as stack:
        status, _, text = await stack.chat("are you there?")
        assert (status, b"picker_unavailable" in text) == (503, True)
        assert await stack.decisions() == []


@asynccontextmanager
async def noting_clients(folder: Path, sides: Sides) -> AsyncIterator[tuple[str, list[str]]]:
    """Run a server that shakes hands, notes the name in the client's certificate, and hangs up."""
    seen: list[str] = []
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "clients.crt"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*sides.ours.issue("picker").write(folder / "noting"))

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown = x509.load_der_x509_certificate(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        seen.append(shown.subject.rfc4514_string())
        writer.transport.abort()

    async with await asyncio.start_server(note, "127.0.0.1", 0, ssl=context) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", seen


async def test_envoy_reads_changed_certificates(tmp_path: Path) -> None:
    """With files of secrets, new connections show the certificate that lies there now."""
    sides = Sides(tmp_path)
    async with noting_clients(tmp_path, sides) as (address, seen):
        options = EnvoyOptions(
            envoy_version=found_version(),
            listen="127.0.0.1:0",
            admin="127.0.0.1:0",
            processors=(address,),
            endpoints=("127.0.0.1:9",),
            **sides.proving,
            tls_secrets=str(tmp_path),
        )
        for name, text in secrets_yaml(options).items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        async with EnvoyProcess(to_yaml(options), find_envoy(), concurrency=1):
            await until(lambda: bool(seen))
            sides.theirs.issue("renewed").write(tmp_path / "client")
            await until(lambda: seen[-1] == "CN=renewed")
            assert seen[0] == "CN=envoy"
