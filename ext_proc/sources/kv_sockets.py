"""ZMQ sockets with short queues, and what happens to their connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

QUEUE = 1_000
"""Messages that wait in memory per publisher, at most."""

LARGEST_MESSAGE = 16 * 1024 * 1024
"""Bytes; who sends more is disconnected before they are read."""

_RECONNECT_MS, _LAST_RECONNECT_MS = 100, 2_000
_HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS = 5_000, 15_000


def new_socket(context: zmq.asyncio.Context, kind: int, address: str) -> zmq.asyncio.Socket:
    """Make a socket that is not connected yet to the address that it is for."""
    socket = context.socket(kind)
    socket.linger = 0
    socket.rcvhwm = QUEUE
    socket.maxmsgsize = LARGEST_MESSAGE
    socket.ipv6 = "[" in address
    socket.reconnect_ivl, socket.reconnect_ivl_max = _RECONNECT_MS, _LAST_RECONNECT_MS
    socket.heartbeat_ivl, socket.heartbeat_timeout = _HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS
    return socket


def direct_of(socket: zmq.asyncio.Socket) -> zmq.Socket[bytes]:
    """Return the same socket for reading at once what is there, which costs a tenth of awaiting each message."""
    direct: zmq.Socket[bytes] = zmq.Socket.shadow(socket.underlying)
    return direct


def happened(monitor: zmq.Socket[bytes]) -> set[int]:
    """Return what happened to a connection since the last time."""
    found = set[int]()
    with suppress(zmq.Again):
        while True:
            found.add(parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))["event"])
    return found


@contextmanager
def monitored(socket: zmq.asyncio.Socket) -> Iterator[zmq.asyncio.Socket]:
    """Return a socket that has something to receive once there is a connection, or none any more."""
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
    try:
        yield monitor
    finally:
        socket.disable_monitor()
        monitor.close(linger=0)
