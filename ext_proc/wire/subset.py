"""The addresses that a data plane allows for a request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ext_proc.core.addresses import canonical


class Subset(Collection[str]):
    """Addresses that the data plane allows: `ip:port` exactly, or an IP alone with any port."""

    def __init__(self, members: Iterable[str]) -> None:
        self._exact: set[str] = set()
        self._hosts: set[str] = set()
        for member in members:
            self._add(member.strip())

    def _add(self, member: str) -> None:
        try:
            self._exact.add(canonical(member))
        except ValueError:
            host = member if member.startswith("[") or ":" not in member else f"[{member}]"
            try:
                self._hosts.add(canonical(f"{host}:1").rpartition(":")[0])
            except ValueError:
                return

    def __contains__(self, address: object) -> bool:
        return isinstance(address, str) and (address in self._exact or address.rpartition(":")[0] in self._hosts)

    def __iter__(self) -> Iterator[str]:
        yield from self._exact
        yield from self._hosts

    def __len__(self) -> int:
        return len(self._exact) + len(self._hosts)
