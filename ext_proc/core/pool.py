"""Which endpoints there are and what each serves, as sources tell it; each change makes another snapshot.

Strategies, filters and the index key their state by slot or generation, so both are given out here
and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from ext_proc.core.caps import NO_CAPS, Caps
from ext_proc.core.model import NO_LABELS, Endpoint, MetricsSource
from ext_proc.core.slots import Slots
from ext_proc.core.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

_NO_MODELS: frozenset[str] = frozenset()


class EndpointSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a source says of one endpoint.

    Attributes:
        address: `ip:port`, IPv6 in brackets, in canonical notation; where a source lists it, also `name:port`.
        models: the models it is declared to serve; empty means that they are learnt from the engine.
        kv_tokens: capacity of its KV cache in tokens; None where unknown.
        prefill_rate: prefill speed in tokens per second; None where unknown.
        ranks: data-parallel ranks behind the address; None where unknown.
        labels: what filters and people may want to know of it.
        metrics: how its metrics are read, where that differs from the rest of its pool.
        caps: what it may hold at most, where that differs from the rest of its pool.
        name: the `name:port` that the address was found under; empty where there is none.
    """

    address: str
    models: frozenset[str] = _NO_MODELS
    kv_tokens: int | None = None
    prefill_rate: float | None = None
    ranks: int | None = None
    labels: Mapping[str, str] = NO_LABELS
    metrics: MetricsSource = MetricsSource()
    caps: Caps = NO_CAPS
    name: str = ""


class Change(msgspec.Struct, frozen=True):
    """What one call did to the set of endpoints; false if it did nothing.

    Attributes:
        added: endpoints that state has to be made for.
        removed: endpoints whose state is to be dropped; never in the slot of one that the same change added.
        updated: endpoints, as they are after the change, that kept slot, generation and state.
    """

    added: tuple[Endpoint, ...] = ()
    removed: tuple[Endpoint, ...] = ()
    updated: tuple[Endpoint, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.updated)


class Registry:
    """The set of endpoints, fed by sources and read as one snapshot.

    An endpoint's identity is its address, its pool and its declared models. A change of anything else keeps
    slot and generation; a change of identity, or an address that was gone in between, makes a different
    endpoint that inherits nothing. An address that several pools list is one endpoint and belongs to the pool
    that began to list it last; if that pool drops it, it falls to the one before.

    Attributes:
        snapshot: the endpoints as they are, to be read only; the same object until something changes.
    """

    def __init__(self, default_pool: str | None = None) -> None:
        self._default_pool = default_pool
        self._claims: dict[str, dict[str, EndpointSpec]] = {}
        self._pool_models: dict[str, frozenset[str]] = {}
        self._entries: dict[str, _Entry] = {}
        self._slots = Slots()
        self._generation = 0
        self._listeners: list[Callable[[], None]] = []
        self.snapshot = Snapshot.of((), default_pool=default_pool)  # no property: each decision reads it some times

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Tell a listener, which must not raise, of each new snapshot until the function is called that is returned."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def set_default_pool(self, name: str | None) -> None:
        """Change which pool takes the traffic nobody steers."""
        if name != self._default_pool:
            self._default_pool = name
            self._publish()

    def replace(self, pool: str, specs: Iterable[EndpointSpec], models: frozenset[str] = _NO_MODELS) -> Change:
        """Make the list the whole content of the pool.

        Args:
            pool: the pool's name; an unknown one is created.
            specs: its endpoints; of two entries with one address the last counts.
            models: what endpoints serve that declare nothing themselves; known even while the pool is empty.
        """
        copied = msgspec.structs.replace  # labels too, so that the caller may alter them
        wanted = {s.address: copied(s, models=s.models or models, labels=dict(s.labels)) for s in specs}
        known = self._pool_models.get(pool)
        self._pool_models[pool] = models
        dropped = [address for address, claims in self._claims.items() if pool in claims and address not in wanted]
        for address in dropped:
            self._unclaim(address, pool)
        for address, spec in wanted.items():
            self._claims.setdefault(address, {})[pool] = spec
        return self._settle([*dropped, *wanted], force=known != models)

    def remove_pool(self, pool: str) -> Change:
        """Forget a pool and what only it lists; an unknown pool is no change."""
        if self._pool_models.pop(pool, None) is None:
            return Change()
        dropped = [address for address, claims in self._claims.items() if pool in claims]
        for address in dropped:
            self._unclaim(address, pool)
        return self._settle(dropped, force=True)

    def learn(
        self, address: str, generation: int, models: frozenset[str], secondary: frozenset[str] = _NO_MODELS
    ) -> Change | None:
        """Note what an engine says it serves.

        Args:
            address: where the engine answered.
            generation: the endpoint that was asked; the answer is void if another one has the address by now.
            models: every name the engine accepts; an empty set teaches nothing.
            secondary: those of them that are adapters or further names of another one.

        Returns:
            The change, or None if the answer is void, contradicts a declaration or says what is known. An engine
            that serves none of the models it served before is another endpoint.
        """
        entry = self._current(address, generation)
        if entry is None or entry.spec.models or not models:
            return None
        if entry.endpoint.models == models and entry.secondary == secondary:
            return None
        old, is_other = entry.endpoint, entry.is_other(models - secondary)
        if is_other:
            self._add(old.pool, entry.spec)
            self._slots.release(old.slot)
            entry = self._entries[address]
        endpoint = msgspec.structs.replace(entry.endpoint, models=models)
        change = self._learnt(msgspec.structs.replace(entry, endpoint=endpoint, secondary=secondary))
        return Change(added=(endpoint,), removed=(old,)) if is_other else change

    def learn_capacity(self, address: str, generation: int, kv_tokens: int) -> Change | None:
        """Note the size of an engine's KV cache, in tokens; a configured one stands. Returns what `learn` does."""
        entry = self._current(address, generation)
        if entry is None or entry.spec.kv_tokens is not None or entry.endpoint.kv_tokens == kv_tokens:
            return None
        endpoint = msgspec.structs.replace(entry.endpoint, kv_tokens=kv_tokens)
        return self._learnt(msgspec.structs.replace(entry, endpoint=endpoint, kv_tokens=kv_tokens))

    def learn_ranks(self, address: str, generation: int, ranks: int) -> Change | None:
        """Note how many data-parallel ranks an engine has; a configured number stands. Returns what `learn` does."""
        entry = self._current(address, generation)
        if entry is None or entry.spec.ranks is not None or entry.endpoint.ranks == ranks:
            return None
        endpoint = msgspec.structs.replace(entry.endpoint, ranks=ranks)
        return self._learnt(msgspec.structs.replace(entry, endpoint=endpoint, ranks=ranks))

    def _current(self, address: str, generation: int) -> _Entry | None:
        entry = self._entries.get(address)
        return entry if entry is not None and entry.endpoint.generation == generation else None

    def _learnt(self, entry: _Entry) -> Change:
        self._entries[entry.spec.address] = entry
        self._publish()
        return Change(updated=(entry.endpoint,))

    def _unclaim(self, address: str, pool: str) -> None:
        claims = self._claims[address]
        del claims[pool]
        if not claims:
            del self._claims[address]

    def _settle(self, addresses: Iterable[str], *, force: bool) -> Change:
        """Bring the addresses' entries in line with their claims; `force` publishes even without a change."""
        added, removed, updated = list[Endpoint](), list[Endpoint](), list[Endpoint]()
        for address in addresses:
            old = self._entries.get(address)
            claim = next(reversed(self._claims[address].items())) if address in self._claims else None
            if old is not None and claim is not None and old.is_same(*claim):
                if old.spec != claim[1]:
                    updated.append(self._update(old, claim[1]))
                continue
            if old is not None:
                del self._entries[address]
                removed.append(old.endpoint)
            if claim is not None:
                added.append(self._add(*claim))
        for endpoint in removed:  # after the additions, so that no slot changes hands within one change
            self._slots.release(endpoint.slot)
        change = Change(tuple(added), tuple(removed), tuple(updated))
        if change or force:
            self._publish()
        return change

    def _add(self, pool: str, spec: EndpointSpec) -> Endpoint:
        # One counter for all addresses: it grows for each of them and needs no memory of those that are gone.
        self._generation += 1
        endpoint = _endpoint(spec, pool, self._slots.take(), self._generation, spec.models)
        self._entries[spec.address] = _Entry(endpoint, spec)
        return endpoint

    def _update(self, old: _Entry, spec: EndpointSpec) -> Endpoint:
        was = old.endpoint
        endpoint = _endpoint(spec, was.pool, was.slot, was.generation, was.models, old.kv_tokens, old.ranks)
        self._entries[spec.address] = msgspec.structs.replace(old, endpoint=endpoint, spec=spec)
        return endpoint

    def _publish(self) -> None:
        entries = self._entries.values()
        served_as_base = _NO_MODELS.union(*(entry.endpoint.models - entry.secondary for entry in entries))
        self.snapshot = Snapshot.of(
            (entry.endpoint for entry in entries),
            default_pool=self._default_pool,
            version=self.snapshot.version + 1,
            pools=self._pool_models,
            models=_NO_MODELS.union(*self._pool_models.values()),
            secondary=_NO_MODELS.union(*(entry.secondary for entry in entries)) - served_as_base,
            undeclared={entry.spec.address for entry in entries if not entry.spec.models},
        )
        for listener in tuple(self._listeners):
            listener()


class _Entry(msgspec.Struct, frozen=True):
    """An endpoint with what was declared and learnt of it; `secondary` are models that are adapters or aliases."""

    endpoint: Endpoint
    spec: EndpointSpec
    secondary: frozenset[str] = _NO_MODELS
    kv_tokens: int | None = None
    ranks: int = 1

    def is_same(self, pool: str, spec: EndpointSpec) -> bool:
        return self.endpoint.pool == pool and self.spec.models == spec.models

    def is_other(self, bases: frozenset[str]) -> bool:
        """Whether none of the models, adapters aside, is one that was served before."""
        before = self.endpoint.models - self.secondary
        return bool(before and bases) and before.isdisjoint(bases)


def _endpoint(
    spec: EndpointSpec,
    pool: str,
    slot: int,
    generation: int,
    models: frozenset[str],
    kv_tokens: int | None = None,
    ranks: int = 1,
) -> Endpoint:
    return Endpoint(
        address=spec.address,
        pool=pool,
        models=models,
        slot=slot,
        generation=generation,
        kv_tokens=kv_tokens if spec.kv_tokens is None else spec.kv_tokens,
        prefill_rate=spec.prefill_rate,
        ranks=spec.ranks or ranks,
        labels=spec.labels,
        metrics=spec.metrics,
        caps=spec.caps,
        name=spec.name,
    )
