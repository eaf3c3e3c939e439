"""Conditions that endpoints must meet before they are ranked, as a mapping of one key each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from ext_proc.core.model import Endpoint
from ext_proc.core.strategies import Context


class Condition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One condition; an engine that says nothing of the value in question meets it.

    Attributes:
        labels: labels that the endpoint must have, each with this value.
        max_in_flight: requests that may be in flight at the endpoint after this one is sent there.
        max_waiting: requests that may wait in the engine's own queue.
        max_kv_usage: share of the engine's KV cache that may be in use, below 1.
        min_score: reputation that the endpoint must have, above 0, at most 1.
    """

    labels: dict[str, str] | None = None
    max_in_flight: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_waiting: Annotated[int, msgspec.Meta(ge=0)] | None = None
    max_kv_usage: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None
    min_score: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None

    def __post_init__(self) -> None:
        """Refuse what is not exactly one condition, or passes everybody."""
        if len(self._given()) != 1:
            raise ValueError(f"a filter has exactly one key of {', '.join(self.__struct_fields__)}")
        if self.labels is not None and not self.labels:
            raise ValueError("`labels` names none, and every endpoint would pass; write some, as in {gpu: h100}")

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return self._given()[0]

    def met(self, candidates: Sequence[Endpoint], context: Context) -> list[bool]:
        """Tell for each candidate whether it meets the condition."""
        if self.labels is not None:
            wanted = self.labels.items()
            return [wanted <= endpoint.labels.items() for endpoint in candidates]
        if self.max_in_flight is not None:
            return [load.in_flight < self.max_in_flight for load in context.loads]
        if self.min_score is not None:
            scores = context.knowledge.reputations.scores(candidates, context.now)
            return [score >= self.min_score for score in scores]
        views = context.knowledge.views(candidates, context.now)
        if self.max_waiting is not None:
            return [view is None or _within(view.waiting, self.max_waiting) for view in views]
        return [view is None or _within(view.kv_usage, self.max_kv_usage) for view in views]

    def _given(self) -> list[str]:
        return [name for name in self.__struct_fields__ if getattr(self, name) is not None]


def _within(value: float | None, limit: float | None) -> bool:
    return value is None or limit is None or value <= limit
