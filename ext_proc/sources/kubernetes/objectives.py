"""Follows the InferenceObjectives of a namespace: names by which requests have their priority."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from ext_proc.sources.kubernetes.access import Access
from ext_proc.sources.kubernetes.objects import InferenceObjective, Kind
from ext_proc.sources.kubernetes.reflector import Reflector

GROUPS: Final = ("llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha2")
"""Where the objects are, and where they were before; the same name in both is the first one's."""

ABSENT_S = 60.0
"""Seconds between two looks whether the cluster has such objects by now."""


class PrioritiesListener(Protocol):
    """Hears of priorities."""

    def priorities_changed(self, priorities: Mapping[str, int]) -> None:
        """These are the priorities that are named now, or they are known for the first time."""

    def objectives_state_changed(self, namespace: str, problem: str, detail: str) -> None:
        """Something is wrong with the objectives of a namespace; an empty problem says that nothing is any more."""


class ObjectiveWatch:
    """Keeps the objectives of a namespace in step with the cluster; needs a running event loop.

    Args:
        namespace: theirs.
        access: opens sessions.
        inactivity: seconds of silence after which a connection counts as dead.
        on_change: told after they have changed.
        listener: hears what is wrong.
        rng: spreads the waits.
    """

    def __init__(
        self,
        namespace: str,
        access: Access,
        inactivity: float,
        on_change: Callable[[], None],
        listener: PrioritiesListener,
        rng: random.Random,
    ) -> None:
        self._namespace = namespace
        self._listener = listener
        self._problem = ""
        self._reflectors = [
            Reflector(
                access,
                Kind(InferenceObjective),
                f"/apis/{group}/namespaces/{namespace}/inferenceobjectives",
                {},
                inactivity=inactivity,
                on_change=on_change,
                on_state=self._tell,
                rng=rng,
                absent_s=ABSENT_S,
            )
            for group in GROUPS
        ]
        self._tasks = [
            asyncio.create_task(reflector.run(), name=f"reflect objectives of {namespace}")
            for reflector in self._reflectors
        ]

    async def close(self) -> None:
        """Follow nothing any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def priorities(self, pool: str) -> dict[str, int]:
        """Return the priorities by name of the objectives that refer to an InferencePool."""
        made: dict[str, int] = {}
        for reflector in reversed(self._reflectors):
            for found in reflector.objects.values():
                if found.spec.pool_ref.name == pool:
                    made[found.metadata.name] = found.spec.priority or 0
        return made

    def _tell(self) -> None:
        broken = next((each for each in self._reflectors if each.problem), None)
        problem = "" if broken is None else broken.problem
        if problem != self._problem:
            self._problem = problem
            self._listener.objectives_state_changed(self._namespace, problem, "" if broken is None else broken.detail)


def merged(pools: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Join the priorities by name of several InferencePools; of two meanings of a name the first pool's holds."""
    made: dict[str, int] = {}
    for priorities in pools:
        made = {**priorities, **made}
    return made
