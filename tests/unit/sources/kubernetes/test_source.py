"""A pool follows an InferencePool and its pods, or the slices of a Service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ext_proc.ops.events import Event
from ext_proc.sources.kubernetes import pool as followed
from tests.kube.following import POOL, SERVICE, Following, following
from tests.kube.objects import endpoint, endpoint_slice, inference_pool, parent, pod, service
from tests.kube.server import FakeApi
from tests.waiting import until

Follower = Callable[[float], Following]


@pytest.fixture
async def pool(api: FakeApi, follower: Follower) -> AsyncIterator[Following]:
    """Follow an InferencePool with two pods."""
    api.put(inference_pool("vllm"), pod("a", "10.0.0.1"), pod("b", "10.0.0.2"))
    async with following(follower(30.0), POOL) as made:
        await until(lambda: made.has("10.0.0.1", "10.0.0.2") and api.watching("pods") == 1)
        yield made


async def test_ready_pods_of_the_pool_are_endpoints(api: FakeApi, pool: Following) -> None:
    """A pod with the pool's labels is an endpoint once it is ready and has an address; others are none (E02)."""
    api.put(pod("c", None, ready=False), pod("d", "10.0.0.4", ready=False), pod("x", "10.0.0.9", labels={"app": "web"}))
    api.put(pod("e", "10.0.0.5"))
    await until(lambda: pool.has("10.0.0.1", "10.0.0.2", "10.0.0.5"))
    api.put(pod("c", "10.0.0.3"))
    await until(lambda: pool.has("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.5"))


async def test_terminating_and_unready_pods_are_none(api: FakeApi, pool: Following) -> None:
    """A pod that is about to end gets nothing more although it says it is ready (E01), and neither does an unready."""
    api.put(pod("a", "10.0.0.1", terminating=True))
    await until(lambda: pool.has("10.0.0.2"))
    api.put(pod("b", "10.0.0.2", ready=False))
    await until(pool.has)
    api.delete("pods", "a")
    api.put(pod("b", "10.0.0.2"))
    await until(lambda: pool.has("10.0.0.2"))


async def test_flapping_readiness_forgets_nothing(api: FakeApi, pool: Following) -> None:
    """A pod that flaps is left out while it is not ready, and stays the same endpoint without a word (E10)."""
    before, known = len(pool.changes), pool.core.registry.snapshot.by_address["10.0.0.1:8000"]
    for _ in range(3):
        api.put(pod("a", "10.0.0.1", ready=False))
        await until(lambda: pool.has("10.0.0.2"))
        api.put(pod("a", "10.0.0.1"))
        await until(lambda: pool.has("10.0.0.1", "10.0.0.2"))
    assert pool.changes[before:] == []
    assert pool.core.registry.snapshot.by_address["10.0.0.1:8000"] is known


async def test_pod_that_stays_unready_is_given_up(
    api: FakeApi, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while the endpoint is gone, although nothing more is heard of its pod."""
    monkeypatch.setattr(followed, "UNREADY_S", 0.3)
    api.put(inference_pool("vllm"), pod("a", "10.0.0.1"), pod("b", "10.0.0.2"))
    async with following(follower(30.0), POOL) as made:
        await until(lambda: made.has("10.0.0.1", "10.0.0.2"))
        api.put(pod("a", "10.0.0.1", ready=False))
        await until(lambda: len(made.core.registry.snapshot.endpoints) == 1)


async def test_pod_that_loses_the_label_leaves(api: FakeApi, pool: Following) -> None:
    """Taking a pod out of the pool by its label is as good as deleting it."""
    api.put(pod("a", "10.0.0.1", labels={"app": "quarantine"}))
    await until(lambda: pool.has("10.0.0.2"))


async def test_each_target_port_is_an_endpoint(api: FakeApi, pool: Following) -> None:
    """A pool with several ports has an endpoint for each of them at each pod (E18); a pod may say which are open."""
    api.put(inference_pool("vllm", ports=(8000, 8001)))
    await until(lambda: pool.addresses() == {f"10.0.0.{n}:{port}" for n in (1, 2) for port in (8000, 8001)})
    api.put(pod("a", "10.0.0.1", annotations={"inference.networking.k8s.io/active-ports": "8001, 9000"}))
    await until(lambda: pool.addresses() == {"10.0.0.1:8001", "10.0.0.2:8000", "10.0.0.2:8001"})


async def test_selector_may_change(api: FakeApi, pool: Following) -> None:
    """A pool that selects other pods has those; until they are known it keeps what it has."""
    api.put(pod("n", "10.0.0.7", labels={"app": "new"}))
    before = len(pool.changes)
    api.put(inference_pool("vllm", {"app": "new"}))
    await until(lambda: pool.has("10.0.0.7"))
    (change,) = pool.changes[before:]
    assert len(change.added) == 1
    assert len(change.removed) == 2
    await until(lambda: api.watching("pods") == 1)


async def test_deleted_pool_has_no_endpoints(api: FakeApi, pool: Following) -> None:
    """Without its InferencePool a pool is empty, and says so; it comes back with it."""
    api.delete("inferencepools", "vllm")
    await until(pool.has)
    assert pool.watching.is_degraded
    assert pool.failures() == ["no_such_inference_pool"]
    api.put(inference_pool("vllm"))
    await until(lambda: pool.has("10.0.0.1", "10.0.0.2") and not pool.watching.is_degraded)


async def test_pool_that_selects_everything_selects_nothing(api: FakeApi, pool: Following) -> None:
    """Without labels an InferencePool would take all pods of its namespace, which nobody means."""
    api.put(inference_pool("vllm", {}))
    await until(pool.has)
    assert pool.failures() == ["inference_pool_selects_nothing"]


async def test_address_of_another_pod_inherits_nothing(api: FakeApi, pool: Following) -> None:
    """An address that another pod has got is another endpoint, in whichever order the two changes come (E04)."""
    before = pool.core.registry.snapshot.by_address["10.0.0.1:8000"]
    api.put(pod("z", "10.0.0.1", created="2026-01-01T02:00:00Z"))
    await until(lambda: pool.core.registry.snapshot.by_address["10.0.0.1:8000"].generation > before.generation)
    after = pool.core.registry.snapshot.by_address["10.0.0.1:8000"]
    api.delete("pods", "a")
    api.put(pod("c", "10.0.0.3"))
    await until(lambda: pool.has("10.0.0.1", "10.0.0.2", "10.0.0.3"))
    assert pool.core.registry.snapshot.by_address["10.0.0.1:8000"] is after


async def test_address_that_goes_to_another_pool(api: FakeApi, follower: Follower) -> None:
    """A pod of another pool has the address before the end of the old one is seen, and keeps it after that (E04)."""
    api.put(inference_pool("chat", {"app": "chat"}), inference_pool("embed", {"app": "embed"}))
    api.put(pod("u1", "10.0.0.1", labels={"app": "chat"}), pod("u2", "10.0.0.2", labels={"app": "chat"}))
    pools = [
        f"{n}: {{models: [{n}], kubernetes: {{namespace: default, inference_pool: {n}}}}}" for n in ("chat", "embed")
    ]
    async with following(follower(30.0), f"pools: {{{', '.join(pools)}}}") as made:
        await until(lambda: len(made.addresses("chat")) == 2)
        old = made.core.registry.snapshot.by_address["10.0.0.1:8000"]
        made.core.index.learn(old.slot, [1, 2, 3])
        api.put(pod("u9", "10.0.0.1", labels={"app": "embed"}, created="2026-01-01T02:00:00Z"))
        await until(lambda: made.addresses("embed") == {"10.0.0.1:8000"})
        new = made.core.registry.snapshot.by_address["10.0.0.1:8000"]
        assert made.core.index.blocks(new.slot) == 0
        assert {each.address for each in made.core.registry.snapshot.by_model["chat"]} == {"10.0.0.2:8000"}
        api.delete("pods", "u1")
        api.put(pod("u3", "10.0.0.3", labels={"app": "chat"}))
        await until(lambda: made.addresses("chat") == {"10.0.0.2:8000", "10.0.0.3:8000"})
        assert made.core.registry.snapshot.by_address["10.0.0.1:8000"] is new


async def test_gateways_word_is_logged(api: FakeApi, pool: Following) -> None:
    """What gateways think of an InferencePool and how it wants to fail is in the log, once per change."""
    parents = [parent("gate", Accepted=("True", "Accepted"), ResolvedRefs=("False", "InvalidExtensionRef"))]
    api.put(inference_pool("vllm", failure_mode="FailClose", parents=parents))
    await until(lambda: sum(event is Event.INFERENCE_POOL_CHANGED for event, _ in pool.said) == 2)
    (_, first), (_, second) = (entry for entry in pool.said if entry[0] is Event.INFERENCE_POOL_CHANGED)
    assert first == {"pool": "p", "failure_mode": "FailOpen", "agrees": True, "parents": [], "problems": []}
    assert second["problems"] == ["default/gate: ResolvedRefs: InvalidExtensionRef"]
    assert second["parents"] == ["default/gate"]
    assert (second["failure_mode"], second["agrees"]) == ("FailClose", False)


async def test_labels_of_pods_become_labels_of_endpoints(api: FakeApi, follower: Follower) -> None:
    """The configuration says which labels count and how they are called."""
    labels = {"app": "vllm", "nvidia.com/gpu.product": "H100", "llm-d.ai/role": "decode"}
    api.put(inference_pool("vllm"), pod("a", "10.0.0.1", labels=labels))
    text = POOL.replace("vllm}", "vllm, labels: {gpu: nvidia.com/gpu.product, adapter: acme.example/adapter}}")
    async with following(follower(30.0), text) as made:
        await until(lambda: made.has("10.0.0.1"))
        assert made.core.registry.snapshot.endpoints[0].labels == {"gpu": "H100"}
        generation = made.core.registry.snapshot.endpoints[0].generation
        api.put(pod("a", "10.0.0.1", labels=labels | {"acme.example/adapter": "legal"}))
        await until(lambda: made.core.registry.snapshot.endpoints[0].labels == {"gpu": "H100", "adapter": "legal"})
        assert made.core.registry.snapshot.endpoints[0].generation == generation


async def test_slices_of_a_service_are_followed(api: FakeApi, follower: Follower) -> None:
    """Addresses of all slices count that are ready and do not end; no word on readiness is a good one."""
    api.put(
        endpoint_slice("s1", "vllm", [endpoint("10.0.0.1", "u1", ready=True), endpoint("10.0.0.2", "u2", ready=False)]),
        endpoint_slice("s2", "vllm", [endpoint("fd00::3", "u3"), endpoint("fd00::4", "u4", ready=True)], family="IPv6"),
        endpoint_slice("s3", "other", [endpoint("10.0.0.9", "u9", ready=True)]),
        endpoint_slice("s4", "vllm", None),
    )
    async with following(follower(30.0), SERVICE) as made:
        await until(lambda: made.addresses() == {"10.0.0.1:8000", "[fd00::3]:8000", "[fd00::4]:8000"})
        ending = endpoint("fd00::4", "u4", ready=True, serving=True, terminating=True)
        api.put(endpoint_slice("s2", "vllm", [endpoint("fd00::3", "u3"), ending], family="IPv6"))
        await until(lambda: made.addresses() == {"10.0.0.1:8000", "[fd00::3]:8000"})
        api.delete("endpointslices", "s1")
        await until(lambda: made.addresses() == {"[fd00::3]:8000"})
        assert {resource for _, resource, _ in api.asked} == {"endpointslices"}


async def test_service_port_must_be_clear(api: FakeApi, follower: Follower) -> None:
    """Of several ports none is taken by chance; the configuration names one, by its name or its number."""
    api.put(endpoint_slice("s", "vllm", [endpoint("10.0.0.1", "u", ready=True)], {"http": 8000, "metrics": 9000}))
    async with following(follower(30.0), SERVICE) as made:
        await until(lambda: made.failures() == ["port_not_clear"])
        assert made.has()
        made.configure(SERVICE.replace("service: vllm", "service: vllm, port: metrics"))
        await until(lambda: made.has("10.0.0.1", port=9000))
        made.configure(SERVICE.replace("service: vllm", "service: vllm, port: 8000"))
        await until(lambda: made.has("10.0.0.1"))
        made.configure(SERVICE.replace("service: vllm", "service: vllm, port: grpc"))
        await until(lambda: made.failures()[-1] == "no_such_port")


async def test_service_without_pods_is_another_thing_than_no_service(api: FakeApi, follower: Follower) -> None:
    """A Service scaled to nothing has a slice without addresses and ports, and nothing is wrong with that."""
    async with following(follower(30.0), SERVICE) as made:
        await until(lambda: made.failures() == ["no_endpoint_slices"])
        api.put(endpoint_slice("s", "vllm", None, {}))
        await until(lambda: not made.watching.is_degraded)
        api.put(endpoint_slice("s", "vllm", [endpoint("10.0.0.1", "u", ready=True)]))
        await until(lambda: made.has("10.0.0.1"))
        assert len(made.failures()) == 1


async def test_service_with_labels_reads_its_pods(api: FakeApi, follower: Follower) -> None:
    """Slices carry no labels of pods, so the Service's selector finds the pods."""
    labels = {"app": "vllm", "gpu": "L40S"}
    api.put(service("vllm", {"app": "vllm"}), pod("a", "10.0.0.1", labels=labels))
    api.put(endpoint_slice("s", "vllm", [endpoint("10.0.0.1", "uid-a", ready=True)]))
    async with following(follower(30.0), SERVICE.replace("vllm}", "vllm, labels: {gpu: gpu}}")) as made:
        await until(lambda: made.has("10.0.0.1"))
        assert made.core.registry.snapshot.endpoints[0].labels == {"gpu": "L40S"}


async def test_many_pools_in_one_process(api: FakeApi, follower: Follower) -> None:
    """Each pool follows its own objects; what is wrong with one is of no concern to the others."""
    api.put(inference_pool("chat", {"app": "chat"}), inference_pool("embed", {"app": "embed"}, (9000,)))
    api.put(pod("c", "10.0.0.1", labels={"app": "chat"}), pod("e", "10.0.0.2", labels={"app": "embed"}))
    api.put(endpoint_slice("s", "web", [endpoint("10.0.0.3", "u", ready=True)]))
    settings = {"chat": "inference_pool: chat", "embed": "inference_pool: embed", "web": "service: web"}
    settings |= {"none": "inference_pool: none"}
    pools = [
        f"{name}: {{models: [{name}], kubernetes: {{namespace: default, {what}}}}}" for name, what in settings.items()
    ]
    async with following(follower(30.0), f"pools: {{{', '.join(pools)}}}") as made:
        await until(lambda: made.addresses("chat") == {"10.0.0.1:8000"})
        await until(lambda: made.addresses("embed") == {"10.0.0.2:9000"})
        await until(lambda: made.addresses("web") == {"10.0.0.3:8000"})
        await until(lambda: made.failures() == ["no_such_inference_pool"])
        await made.watching.answered()


async def test_reload_keeps_what_stays_and_drops_what_is_another(api: FakeApi, pool: Following) -> None:
    """Other labels interrupt nothing; another InferencePool is another set of endpoints, empty until it is known."""
    kept = pool.core.registry.snapshot.by_address["10.0.0.1:8000"].generation
    pool.configure(POOL.replace("vllm}", "vllm, labels: {app: app}}"))
    await until(lambda: pool.core.registry.snapshot.endpoints[0].labels == {"app": "vllm"})
    assert pool.core.registry.snapshot.by_address["10.0.0.1:8000"].generation == kept
    pool.configure(POOL.replace("vllm}", "other}"))
    assert pool.has()
    pool.configure("pools: {p: {models: [m], endpoints: ['10.0.0.8:80']}}")
    await until(lambda: api.watching("pods") == 0)
    assert pool.addresses() == {"10.0.0.8:80"}
    assert not pool.watching.is_degraded


async def test_thousands_of_pods_come_in_pages(api: FakeApi, follower: Follower) -> None:
    """A list of 1,600 pods is read in pages, and all of them are endpoints."""
    api.put(inference_pool("vllm"))
    api.put(*(pod(f"p{n}", f"10.1.{n // 250}.{n % 250}") for n in range(1600)))
    async with following(follower(30.0), POOL) as made:
        await until(lambda: len(made.addresses()) == 1600)
        pages = [query for verb, resource, query in api.asked if (verb, resource) == ("list", "pods")]
        assert [query.get("limit") for query in pages] == ["500"] * 4
        assert sum("continue" in query for query in pages) == 3


async def test_change_that_cannot_be_put_into_effect_is_tried_again(
    api: FakeApi, pool: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error on the way to the registry is said, and the change is not lost."""
    monkeypatch.setattr(followed, "RETRY_S", 0.1)
    supply, errors = pool.keeper.supply, [RuntimeError("no")] * 2

    def failing(*arguments: Any) -> None:
        if errors:
            raise errors.pop()
        supply(*arguments)

    monkeypatch.setattr(pool.keeper, "supply", failing)
    api.put(pod("c", "10.0.0.3"))
    await until(lambda: pool.has("10.0.0.1", "10.0.0.2", "10.0.0.3"))
    assert pool.failures() == ["failed"]


async def test_a_selector_needs_no_inference_pool(api: FakeApi, follower: Follower) -> None:
    """Pods with labels as they are asked for, at each port; nothing but pods is read (E18)."""
    labels = ({"app": "vllm", "tier": "a"}, {"app": "vllm", "tier": "c"}, {"app": "vllm", "tier": "b", "canary": "1"})
    api.put(*(pod(f"p{number}", f"10.0.0.{number}", labels=each) for number, each in enumerate(labels)))
    text = "pools: {p: {models: [m], kubernetes: {namespace: default, selector: '%s', target_ports: [8000, 8001]}}}"
    async with following(follower(30.0), text % "app=vllm,tier in (a, b),!canary") as made:
        await until(lambda: made.addresses() == {"10.0.0.0:8000", "10.0.0.0:8001"})
        api.put(pod("p1", "10.0.0.1", labels={"app": "vllm", "tier": "b"}))
        await until(lambda: len(made.addresses()) == 4)
        api.put(pod("p0", "10.0.0.0", labels={"app": "web"}))
        await until(lambda: made.addresses() == {"10.0.0.1:8000", "10.0.0.1:8001"})
        assert {resource for _, resource, _ in api.asked} == {"pods"}
        made.configure(text % "tier=c")
        api.put(pod("p3", "10.0.0.3", labels={"tier": "c"}))
        await until(lambda: made.addresses() == {"10.0.0.3:8000", "10.0.0.3:8001"})
        assert made.failures() == []
