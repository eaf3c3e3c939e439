"""Certificates from files and of our own making."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ext_proc.config import TlsConfig
from ext_proc.core.errors import ConfigError
from ext_proc.sources import certificates
from ext_proc.sources.certificates import CertificateFiles, Certificates, check, obtain, self_signed
from tests.certificates import Authority, Pair
from tests.waiting import until

AUTHORITY = Authority()
FIRST, SECOND = AUTHORITY.issue("first"), AUTHORITY.issue("second")


def mounted(folder: Path, pair: Pair = FIRST, **fields: Any) -> TlsConfig:
    """Write a certificate and its key, and configure them."""
    certificate, key = pair.write(folder)
    return TlsConfig(certificate=str(certificate), key=str(key), **fields)


class Heard:
    """What a watch reports."""

    def __init__(self) -> None:
        self.found: list[Certificates] = []
        self.errors: list[str] = []


@asynccontextmanager
async def watching(config: TlsConfig, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Heard, CertificateFiles]]:
    """Watch the files of a configuration, without long pauses."""
    monkeypatch.setattr(certificates, "LOOK_S", 0.01)
    heard = Heard()
    files = CertificateFiles(
        config, obtain(config), heard.found.append, lambda error: heard.errors.append(error.message)
    )
    task = asyncio.create_task(files.run())
    yield heard, files
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_files_are_read(tmp_path: Path) -> None:
    """Certificate, key and authority come as they stand there."""
    authority = tmp_path / "ca.crt"
    authority.write_bytes(AUTHORITY.certificate)
    found = obtain(mounted(tmp_path, client_ca=str(authority)))
    assert found == (FIRST.key, FIRST.certificate, AUTHORITY.certificate)


def test_one_is_made_where_none_is_named(tmp_path: Path) -> None:
    """A key and a certificate that belong together, new each time; an authority for clients may stand beside them."""
    authority = tmp_path / "ca.crt"
    authority.write_bytes(AUTHORITY.certificate)
    made = obtain(TlsConfig(client_ca=str(authority)))
    certificate, key = Pair(made.chain, made.key).write(tmp_path / "made")
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    assert made.client_ca == AUTHORITY.certificate
    assert self_signed() != self_signed()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can make certificates, the message says what to install."""
    monkeypatch.setattr(certificates, "find_spec", lambda _name: None)
    monkeypatch.setattr(certificates, "_cryptography", lambda: __import__("no_such_package"))
    for attempt in (check, obtain):
        with pytest.raises(ConfigError, match=r"pip install 'kvpicker\[tls\]'") as caught:
            attempt(TlsConfig())
        assert caught.value.path == "tls.certificate"


@pytest.mark.parametrize(
    ("name", "content", "field", "message"),
    [
        ("tls.crt", None, "certificate", "tls.crt cannot be read: No such file or directory"),
        ("tls.key", None, "key", "tls.key cannot be read"),
        ("tls.key", SECOND.key, "key", "is not the private key of"),
        ("tls.key", AUTHORITY.issue("locked", b"secret").key, "key", "is encrypted; store"),
        ("tls.crt", b"hello", "certificate", "are no certificate and private key in PEM"),
        ("tls.crt", b" " * 2_000_000, "certificate", "is larger than"),
        ("ca.crt", None, "client_ca", "ca.crt cannot be read"),
        ("ca.crt", b"hello", "client_ca", "holds no certificate in PEM form"),
        ("ca.crt", b"", "client_ca", "holds no certificate in PEM form"),
    ],
)
def test_what_cannot_be_used_is_said(
    tmp_path: Path, name: str, content: bytes | None, field: str, message: str
) -> None:
    """A file that is missing, broken or another's is named with what is wrong, and nothing of its content."""
    authority = tmp_path / "ca.crt"
    authority.write_bytes(AUTHORITY.certificate)
    config = mounted(tmp_path, client_ca=str(authority))
    check(config)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        check(config)
    assert caught.value.path == f"tls.{field}"
    assert "PRIVATE" not in str(caught.value)


async def test_a_change_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New certificates are handed on when both files belong together again; between them is no fault for long."""
    async with watching(mounted(tmp_path), monkeypatch) as (heard, files):
        (tmp_path / "tls.crt").write_bytes(SECOND.certificate)
        await until(lambda: bool(heard.errors))
        assert heard.found == []
        assert files.error is not None
        (tmp_path / "tls.key").write_bytes(SECOND.key)
        await until(lambda: bool(heard.found))
        assert heard.found == [(SECOND.key, SECOND.certificate, None)]
        assert files.error is None
        assert set(heard.errors) <= {f"{tmp_path}/tls.key is not the private key of {tmp_path}/tls.crt"}


async def test_a_swapped_mount_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kubernetes does it: the files are links through a link to a folder, and that link is swapped."""
    for name, pair in (("one", FIRST), ("two", SECOND)):
        pair.write(tmp_path / name)
    (tmp_path / "data").symlink_to("one")
    config = TlsConfig(certificate=str(tmp_path / "data" / "tls.crt"), key=str(tmp_path / "data" / "tls.key"))
    async with watching(config, monkeypatch) as (heard, _files):
        (tmp_path / "fresh").symlink_to("two")
        (tmp_path / "fresh").replace(tmp_path / "data")
        await until(lambda: bool(heard.found))
        assert [found.chain for found in heard.found] == [SECOND.certificate]


async def test_what_we_made_stays_when_the_authority_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the authority of clients is watched then."""
    authority = tmp_path / "ca.crt"
    authority.write_bytes(AUTHORITY.certificate)
    async with watching(TlsConfig(client_ca=str(authority)), monkeypatch) as (heard, files):
        other = Authority("other").certificate
        authority.write_bytes(other)
        await until(lambda: bool(heard.found))
        assert heard.found[-1].client_ca == other
        assert heard.found[-1].key == files._current.key != b""


async def test_nothing_is_watched_where_no_file_is_named() -> None:
    """A watch without files ends at once."""
    config = TlsConfig()
    await CertificateFiles(config, obtain(config), print, print).run()
