"""Which models each endpoint answered for lately: LoRA adapters that an engine likely still has loaded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from ext_proc.core.model import Endpoint

_NOBODY: Collection[str] = ()


class ServedModels:
    """The latest models of every endpoint, by slot; a successor in the slot inherits nothing.

    Args:
        limit: different models remembered per endpoint.
    """

    def __init__(self, *, limit: int = 64) -> None:
        self._limit = limit
        self._models: dict[int, tuple[int, OrderedDict[str, None]]] = {}

    def note(self, endpoint: Endpoint, model: str) -> None:
        """Note that the endpoint answered for a model that it serves."""
        known = self._models.get(endpoint.slot)
        if known is None or known[0] != endpoint.generation:
            known = self._models[endpoint.slot] = (endpoint.generation, OrderedDict())
        models = known[1]
        if models and next(reversed(models)) == model:
            return
        models[model] = None
        models.move_to_end(model)
        if len(models) > self._limit:
            models.popitem(last=False)

    def lately(self, endpoint: Endpoint, count: int) -> Collection[str]:
        """Return the last `count` different models, at most, that the endpoint answered for."""
        known = self._models.get(endpoint.slot)
        if known is None or known[0] != endpoint.generation:
            return _NOBODY
        latest = reversed(known[1])
        return {model for model, _ in zip(latest, range(count), strict=False)}
