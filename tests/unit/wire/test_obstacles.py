"""Why an address cannot be listened on."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from ext_proc.wire.obstacles import obstacle


def test_an_address_in_use() -> None:
    """By somebody who listens there."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert obstacle(f"127.0.0.1:{other.getsockname()[1]}") == "address already in use"


def test_an_address_of_another_machine() -> None:
    """Port and process are all right."""
    assert obstacle("192.0.2.1:9002") == "cannot assign requested address"
    told = obstacle("[2001:db8::1]:9002")
    assert told == "cannot assign requested address" or "address family" in told


def test_a_family_that_the_kernel_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where IPv6 is switched off there is not even a socket to try with."""

    def refuse(family: int) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT), family)

    monkeypatch.setattr(socket, "socket", refuse)
    assert obstacle("[::]:9002") == "address family not supported by protocol"


def test_what_is_gone_by_now_is_guessed_at() -> None:
    """Whoever had it has left since."""
    assert obstacle("127.0.0.1:0") == "is it in use?"


def test_a_socket_needs_a_folder(tmp_path: Path) -> None:
    """Which is there, may be written, and has not too long a path."""
    assert obstacle(f"unix:{tmp_path}/none/x.sock") == f"there is no folder {tmp_path}/none"
    assert obstacle(f"unix:{tmp_path}/x.sock") == "is it in use?"
    assert obstacle(f"unix:{tmp_path}/{'x' * 120}") == "the path is too long"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    """It belongs to somebody else."""
    tmp_path.chmod(0o500)
    assert obstacle(f"unix:{tmp_path}/x.sock") == f"the folder {tmp_path} cannot be written by this user"
