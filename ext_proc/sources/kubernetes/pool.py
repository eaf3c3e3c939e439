"""Follows the endpoints of one pool: the objects that name them, and what is made of these."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any, Protocol

from ext_proc.config import KubernetesPoolConfig
from ext_proc.sources.kubernetes.access import Access
from ext_proc.sources.kubernetes.endpoints import (
    Claim,
    Found,
    PoolFacts,
    age,
    endpoint_labels,
    pod_claims,
    pool_facts,
    resolve,
    selector_text,
    slice_claims,
    slice_ports,
)
from ext_proc.sources.kubernetes.objects import (
    NO_TEXTS,
    EndpointSlice,
    InferencePool,
    Kind,
    Pod,
    Service,
    T,
)
from ext_proc.sources.kubernetes.patience import Patience
from ext_proc.sources.kubernetes.reflector import Reflector

UNREADY_S = 60.0
"""How long a pod keeps its place that was ready and is not."""

RETRY_S = 1.0

SHARE = 0.04
"""Share of a core that putting changes into effect may take: after each there is a pause in proportion."""

PAUSE_S = (0.1, 0.5)
"""The shortest and the longest pause."""


class Listener(Protocol):
    """Hears of pools."""

    def supply(self, pool: str, found: Found) -> None:
        """The endpoints of a pool are others than before, or known for the first time."""

    def state_changed(self, pool: str, problem: str, detail: str) -> None:
        """Something is wrong with what is known of a pool; an empty problem says that nothing is any more."""

    def facts_changed(self, pool: str, facts: PoolFacts) -> None:
        """An InferencePool says something else beside its endpoints."""


class PoolWatch:
    """Keeps one pool in step with the cluster; needs a running event loop.

    Args:
        name: the pool.
        config: what is followed.
        access: opens sessions.
        inactivity: seconds of silence after which a connection counts as dead.
        listener: hears what comes of it.
        rng: spreads the waits.
    """

    def __init__(
        self,
        name: str,
        config: KubernetesPoolConfig,
        access: Access,
        inactivity: float,
        listener: Listener,
        rng: random.Random,
    ) -> None:
        self._name = name
        self._config = config
        self._access = access
        self._inactivity = inactivity
        self._listener = listener
        self._rng = rng
        self._dirty = asyncio.Event()
        self._found: Found | None = None
        self._patience = Patience(UNREADY_S)
        self._next: asyncio.TimerHandle | None = None
        self._facts: PoolFacts | None = None
        self._problem = ""
        self._claims: dict[str, tuple[Pod, tuple[Claim, ...]]] = {}
        self._selector = ""
        self._ports: tuple[int, ...] = ()
        self._tasks: dict[Reflector[Any], asyncio.Task[None]] = {}
        self._pods: Reflector[Pod] | None = None
        self._next_pods: Reflector[Pod] | None = None
        self._pools: Reflector[InferencePool] | None = None
        self._slices: Reflector[EndpointSlice] | None = None
        self._services: Reflector[Service] | None = None
        self._start(config)
        self._task = asyncio.create_task(self._follow(), name=f"follow pool {name}")

    def _start(self, config: KubernetesPoolConfig) -> None:
        if config.selector is not None:
            self._select(config.selector)
            return
        base = f"namespaces/{config.namespace}"
        if config.inference_pool is not None:
            path = f"/apis/inference.networking.k8s.io/v1/{base}/inferencepools"
            self._pools = self._reflect(Kind(InferencePool), path, _named(config.inference_pool))
            return
        path = f"/apis/discovery.k8s.io/v1/{base}/endpointslices"
        query = {"labelSelector": f"kubernetes.io/service-name={config.service}"}
        self._slices = self._reflect(Kind(EndpointSlice), path, query)
        if config.labels:
            self._services = self._reflect(Kind(Service), f"/api/v1/{base}/services", _named(config.service or ""))

    @property
    def is_known(self) -> bool:
        """Whether the endpoints were ever known."""
        return self._found is not None

    @property
    def is_answered(self) -> bool:
        """Whether the endpoints are known, or it is known why they are not."""
        return self.is_known or bool(self._problem)

    @property
    def is_degraded(self) -> bool:
        """Whether the endpoints may be out of date, or are not known."""
        return bool(self._problem) or not self.is_known

    async def close(self) -> None:
        """Follow nothing any more."""
        if self._next is not None:
            self._next.cancel()
        tasks = [self._task, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _reflect(self, kind: Kind[T], path: str, query: Mapping[str, str]) -> Reflector[T]:
        reflector = Reflector(
            self._access,
            kind,
            path,
            query,
            inactivity=self._inactivity,
            on_change=self._dirty.set,
            on_state=self._dirty.set,
            rng=self._rng,
        )
        self._tasks[reflector] = asyncio.create_task(reflector.run(), name=f"reflect {path}")
        return reflector

    def _end(self, reflector: Reflector[Any]) -> None:
        self._tasks.pop(reflector).cancel()

    async def _follow(self) -> None:
        """Put changes into effect, the first at once and further ones together after a pause."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            began = time.thread_time()
            try:
                self._update()
            except Exception as error:  # noqa: BLE001  what cannot be put into effect now may be later
                self._tell("failed", repr(error))
                asyncio.get_running_loop().call_later(RETRY_S, self._dirty.set)
            used = time.thread_time() - began
            await asyncio.sleep(min(max(used / SHARE, PAUSE_S[0]), PAUSE_S[1]))

    def _update(self) -> None:
        problem, found = self._find()
        if found is not None:
            self._supply(found)
        broken = [reflector for reflector in self._tasks if reflector.problem]
        if broken:
            self._tell(broken[0].problem, broken[0].detail)
        else:
            self._tell(problem, "")

    def _find(self) -> tuple[str, Found | None]:
        """Return what is wrong with the objects, if anything, and the endpoints as far as they are known."""
        if self._config.selector is not None:
            pods = self._select(self._config.selector)
            return "", None if pods is None else resolve(self._of_pods(pods, self._config.target_ports))
        return self._from_slices() if self._pools is None else self._from_pool()

    def _supply(self, found: Found) -> None:
        now = time.monotonic()
        found = self._patience.kept(found, now)
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._patience.until is not None:
            self._next = asyncio.get_running_loop().call_later(self._patience.until - now, self._dirty.set)
        if found != self._found:
            self._listener.supply(self._name, found)
            self._found = found

    def _tell(self, problem: str, detail: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._listener.state_changed(self._name, problem, detail)

    def _from_pool(self) -> tuple[str, Found | None]:
        """Make the endpoints of the InferencePool's pods."""
        assert self._pools is not None  # noqa: S101  of the caller
        if not self._pools.listed:
            return "", None
        pool = next(reversed(list(self._pools.objects.values())), None)
        if pool is None:
            self._select("")
            return "no_such_inference_pool", Found()
        self._note(pool_facts(pool))
        ports = tuple(port.number for port in pool.spec.target_ports or ())
        selector = pool.spec.selector.match_labels or NO_TEXTS
        pods = self._select(selector_text(selector))
        if not selector or not ports:
            return "inference_pool_selects_nothing", Found()
        if pods is None:
            return "", None
        if ports != self._ports:
            self._ports, self._claims = ports, {}
        return "", resolve(self._of_pods(pods, ports))

    def _of_pods(self, pods: Mapping[str, Pod], ports: tuple[int, ...]) -> list[Claim]:
        known, self._claims = self._claims, {}
        for pod in sorted(pods.values(), key=age):
            before = known.get(pod.metadata.uid)
            same = before is not None and before[0] is pod
            made = before if before is not None and same else (pod, pod_claims(pod, ports, self._config.labels))
            self._claims[pod.metadata.uid] = made
        return [claim for _, claims in self._claims.values() for claim in claims]

    def _from_slices(self) -> tuple[str, Found | None]:
        """Make the endpoints of the Service's slices, with the labels of its pods where some are wanted."""
        assert self._slices is not None  # noqa: S101  of the caller
        labels: dict[str, dict[str, str]] = {}
        if self._services is not None:
            service = next(reversed(list(self._services.objects.values())), None)
            pods = self._select("" if service is None else selector_text(service.spec.selector or NO_TEXTS))
            if not self._services.listed or (pods is None and self._next_pods is not None):
                return "", None
            for pod in (pods or {}).values():
                labels[pod.metadata.uid] = endpoint_labels(pod.metadata.labels or NO_TEXTS, self._config.labels)
        if not self._slices.listed:
            return "", None
        parts, port = self._slices.objects.values(), self._config.port
        found = resolve(claim for part in parts for claim in slice_claims(part, port, labels))
        if not parts:  # a Service that has lost all its pods has a slice without addresses
            return "no_endpoint_slices", found
        filled = [part for part in parts if part.endpoints]
        if filled and not any(slice_ports(part, port) for part in filled):
            return "no_such_port" if port is not None else "port_not_clear", found
        return "", found

    def _select(self, text: str) -> Mapping[str, Pod] | None:
        """Follow the pods with these labels; return those known, of the labels before until these are listed."""
        if text != self._selector:
            self._selector = text
            if self._next_pods is not None:
                self._end(self._next_pods)
            self._next_pods = None
            if text:
                path = f"/api/v1/namespaces/{self._config.namespace}/pods"
                self._next_pods = self._reflect(Kind(Pod), path, {"labelSelector": text})
        if self._pods is not None and (not text or (self._next_pods is not None and self._next_pods.listed)):
            self._end(self._pods)
            self._pods, self._claims = None, {}
        if self._next_pods is not None and self._next_pods.listed:
            self._pods, self._next_pods = self._next_pods, None
        return None if self._pods is None else self._pods.objects

    def _note(self, facts: PoolFacts) -> None:
        if facts != self._facts:
            self._facts = facts
            self._listener.facts_changed(self._name, facts)


def _named(name: str) -> dict[str, str]:
    return {"fieldSelector": f"metadata.name={name}"}
