"""Says why an address cannot be listened on, which gRPC does not tell."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path


def obstacle(address: str) -> str:
    """Return what keeps a server from an `ip:port` or a `unix:/path`, as far as it is still to be seen."""
    if address.startswith("unix:"):
        return _of_socket(Path(address.removeprefix("unix:")))
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        with closing(socket.socket(family)) as tried:  # not to be had where the kernel has no IPv6
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((host.strip("[]"), int(port)))
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "is it in use?"


def _of_socket(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder}"
    if not os.access(folder, os.W_OK):
        return f"the folder {folder} cannot be written by this user"
    longest = 107  # bytes that Linux has room for
    return "the path is too long" if len(os.fsencode(path)) > longest else "is it in use?"
