"""A row of endpoints to choose from, with the columns that a decision reads of all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from ext_proc.core.model import Endpoint


class Candidates(tuple[Endpoint, ...]):  # noqa: SLOT001  a tuple can have no slots beside its items
    """Endpoints in order.

    Attributes:
        slots: the slot of each.
        ranks: the data-parallel ranks of each; None if all have one.
        kv_tokens: the KV capacity of each, of one rank where there are several, None where unknown.
        least_kv_tokens: the smallest of them; None if none is known.
        prefill_rates: the configured prefill rate of each; None if none is configured.
    """

    slots: tuple[int, ...]
    ranks: tuple[int, ...] | None
    kv_tokens: tuple[int | None, ...]
    least_kv_tokens: int | None
    prefill_rates: tuple[float | None, ...] | None

    def __new__(cls, endpoints: Iterable[Endpoint] = ()) -> Self:
        """Read the columns once, since the same candidates stand before many decisions."""
        made = super().__new__(cls, endpoints)
        made.slots = tuple(endpoint.slot for endpoint in made)
        ranks = tuple(endpoint.ranks for endpoint in made)
        made.ranks = ranks if any(count > 1 for count in ranks) else None
        made.kv_tokens = tuple(endpoint.kv_tokens and endpoint.kv_tokens // endpoint.ranks for endpoint in made)
        made.least_kv_tokens = min((size for size in made.kv_tokens if size), default=None)
        rates = tuple(endpoint.prefill_rate for endpoint in made)
        made.prefill_rates = rates if any(rates) else None
        return made


def group_by_pool(endpoints: Iterable[Endpoint], pools: Iterable[str]) -> dict[str, Candidates]:
    """Return the endpoints of each pool, of `pools` even where there are none."""
    groups: dict[str, list[Endpoint]] = {pool: [] for pool in pools}
    for endpoint in endpoints:
        groups.setdefault(endpoint.pool, []).append(endpoint)
    return {pool: Candidates(members) for pool, members in groups.items()}


def group_by_model(endpoints: Iterable[Endpoint], models: Iterable[str]) -> dict[str, Candidates]:
    """Return the endpoints of each model; `models` are all that they serve."""
    groups: dict[str, list[Endpoint]] = {model: [] for model in models}
    for endpoint in endpoints:
        for model in endpoint.models:
            groups[model].append(endpoint)
    return {model: Candidates(members) for model, members in groups.items()}
