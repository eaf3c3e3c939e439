"""The addresses that a data plane allows for a request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from google.protobuf.struct_pb2 import Struct, Value

from ext_proc.core.addresses import canonical
from ext_proc.core.names import LB_NAMESPACE, SUBSET, SUBSET_NAMESPACE


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


def subset_hint(metadata: Mapping[str, Struct]) -> Collection[str] | None:
    """Read the subset hint: a list or a comma-separated string of addresses; absent and null mean no hint.

    Some gateways put it beside the destination instead of in its own namespace.
    """
    for namespace in (SUBSET_NAMESPACE, LB_NAMESPACE):
        if namespace in metadata and SUBSET in metadata[namespace].fields:
            return _allowed(metadata[namespace].fields[SUBSET])
    return None


def _allowed(value: Value) -> Collection[str] | None:
    kind = value.WhichOneof("kind")
    if kind in (None, "null_value"):
        return None
    if kind == "string_value":
        return Subset(value.string_value.split(","))
    if kind == "list_value":
        return Subset(member.string_value for member in value.list_value.values)
    return Subset(())
