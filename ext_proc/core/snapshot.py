"""All endpoints at one moment, by everything that decisions look them up by."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from ext_proc.core.candidates import Candidates, group_by_model, group_by_pool
from ext_proc.core.model import Endpoint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_NO_MODELS: frozenset[str] = frozenset()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All endpoints at one moment; never altered, so a decision may hold it as long as it likes.

    Attributes:
        version: grows with each snapshot of a registry.
        endpoints: every endpoint once.
        by_address: the same, by address.
        by_pool: the same, by pool; a pool without endpoints is listed too.
        default_pool: the pool for traffic nobody steers: the configured one, else the only one, else None.
        models: every model name that is declared or learnt, even if no endpoint serves it at the moment.
        sole_model: the base model if exactly one is served; adapters and aliases do not count.
        by_model: the candidates of each served model.
        unlearnt: endpoints whose models are unknown, which may serve any.
        undeclared: endpoints whose models are to be learnt from the engine, learnt or not.
        modelless: the candidates of a request that names no model.
    """

    version: int
    endpoints: Candidates
    by_address: Mapping[str, Endpoint]
    by_pool: Mapping[str, Candidates]
    default_pool: str | None
    models: frozenset[str]
    sole_model: str | None
    by_model: Mapping[str, Candidates]
    unlearnt: Candidates
    undeclared: tuple[Endpoint, ...]
    modelless: Candidates

    @classmethod
    def of(
        cls,
        endpoints: Iterable[Endpoint],
        *,
        default_pool: str | None = None,
        version: int = 0,
        pools: Collection[str] = (),
        models: frozenset[str] = _NO_MODELS,
        secondary: frozenset[str] = _NO_MODELS,
        undeclared: Collection[str] = (),
    ) -> Snapshot:
        """Index a set of endpoints.

        Args:
            endpoints: the endpoints, each address once.
            default_pool: the configured default pool; None if none is configured.
            version: the number of the snapshot.
            pools: pools that exist even without an endpoint.
            models: models that are known even without an endpoint.
            secondary: names that are adapters or aliases of another served model.
            undeclared: addresses whose models are not declared.
        """
        every = Candidates(endpoints)
        by_pool = group_by_pool(every, pools)
        sole_pool = next(iter(by_pool)) if len(by_pool) == 1 else None
        served = frozenset[str]().union(*(endpoint.models for endpoint in every))
        bases = served - secondary
        default_or_all = every if default_pool is None else by_pool.get(default_pool, Candidates())
        return cls(
            version=version,
            endpoints=every,
            by_address=MappingProxyType({endpoint.address: endpoint for endpoint in every}),
            by_pool=MappingProxyType(by_pool),
            default_pool=default_pool if default_pool is not None else sole_pool,
            models=served | models,
            sole_model=next(iter(bases)) if len(bases) == 1 else None,
            by_model=MappingProxyType(group_by_model(every, served)),
            unlearnt=Candidates(endpoint for endpoint in every if not endpoint.models),
            undeclared=tuple(endpoint for endpoint in every if endpoint.address in undeclared),
            modelless=default_or_all if default_pool is not None or len(bases) <= 1 else Candidates(),
        )

    def candidates(self, model: str | None) -> Candidates:
        """Return the endpoints that serve the model, of whichever pool; if none does, those whose models are unknown.

        For None, a request without a model: the configured default pool, else all endpoints if at most one
        base model is served, else none.
        """
        if model is None:
            return self.modelless
        return self.by_model.get(model, self.unlearnt)

    def known(self, model: str | None) -> str | None:
        """Return the name of a model that is known here, the only one for a request without; None for a stranger's."""
        name = model or self.sole_model
        return name if name in self.models else None

    def serves(self, model: str) -> bool:
        """Tell a known model, perhaps without an endpoint at the moment, from one nobody has heard of."""
        return model in self.models
