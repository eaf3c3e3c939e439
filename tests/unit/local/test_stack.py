"""What the stack checks before it starts anything."""

from __future__ import annotations

import asyncio
import io
import socket
from pathlib import Path

import pytest

from ext_proc.core.errors import ConfigError
from ext_proc.local.child import ChildFailed
from ext_proc.local.options import StackOptions
from ext_proc.local.stack import Stack, check_port, poll
from ext_proc.local.steps import Steps, console


def stack(options: StackOptions) -> Stack:
    """Make a stack whose progress nobody sees."""
    return Stack(options, Steps(console(io.StringIO())))


def test_a_busy_port_is_named() -> None:
    """The message says which port and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is in use; choose another with --port"):
            check_port(port)


def test_a_port_shared_on_purpose_is_busy_too() -> None:
    """Another Envoy shares its port, and would take half of the connections."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ConfigError, match="is in use"):
            check_port(other.getsockname()[1])


def test_any_free_port_will_do() -> None:
    """Port 0 is always free."""
    check_port(0)


async def test_a_missing_envoy_is_named(tmp_path: Path) -> None:
    """Nothing is started without one."""
    with pytest.raises(ConfigError, match="no executable file"):
        await stack(StackOptions(port=0, envoy="no-such-envoy", parent=tmp_path)).__aenter__()


async def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    """The message says what to set."""
    missing = tmp_path / "missing"
    with pytest.raises(ConfigError, match=f"cannot write to {missing}: No such file or directory; set TMPDIR"):
        await stack(StackOptions(port=0, envoy="sh", parent=missing)).__aenter__()


async def test_a_failed_start_leaves_nothing(tmp_path: Path) -> None:
    """The folder is removed when an engine is not there."""
    with pytest.raises(ConfigError, match="cannot be reached"):
        await stack(StackOptions(port=0, envoy="sh", engines=("http://127.0.0.1:1",), parent=tmp_path)).__aenter__()
    assert not any(await asyncio.to_thread(lambda: list(tmp_path.iterdir())))


async def test_waiting_has_a_bound() -> None:
    """The complaint says what did not happen."""

    async def never() -> bool:
        return False

    with pytest.raises(ChildFailed, match="nobody came within 0 s"):
        await poll(never, "nobody came", timeout_s=0.1)
