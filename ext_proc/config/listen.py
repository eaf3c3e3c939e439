"""Finds addresses to listen on that cannot both be had."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.core import addresses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ext_proc.config.document import Path
    from ext_proc.config.settings import Config

_ANY_HOST = frozenset({"0.0.0.0", "[::]"})  # noqa: S104  read, not bound


def taken_twice(config: Config) -> Iterator[tuple[Path, str]]:
    """Give the path of each address that stands at another place too, and what that means.

    Addresses that are no such are passed over, and so is port 0, which is a free one each time.
    """
    taken: list[tuple[str, str]] = []
    for path, text in _listened(config):
        try:
            address = addresses.listening(text)
        except ValueError:
            continue
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
        other = next((place for known, place in taken if _collide(known, address)), None)
        if other is not None:
            yield path, f"{address} is listened on already, by {other}; give one of them another port"
        taken.append((address, where))


def _listened(config: Config) -> Iterator[tuple[Path, str]]:
    yield ("admin", "listen"), config.admin.listen  # first: it has a default, so the other one is what was written
    for name, texts in (("listen", config.listen), ("health_listen", config.health_listen)):
        for index, text in enumerate(texts):
            yield (name, index), text
    for index, text in enumerate(config.tls.plaintext if config.tls is not None else ()):
        yield ("tls", "plaintext", index), text


def _collide(one: str, two: str) -> bool:
    if one == two:
        return not one.endswith(":0")
    (host, _, port), (other_host, _, other_port) = one.rpartition(":"), two.rpartition(":")
    if port != other_port or port == "0" or "unix" in {host, other_host}:
        return False
    same_family = host.startswith("[") == other_host.startswith("[")
    return same_family and bool({host, other_host} & _ANY_HOST)
