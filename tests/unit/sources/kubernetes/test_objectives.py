"""InferenceObjectives name priorities, where a cluster has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ext_proc.assembly import exchange_policy
from ext_proc.ops.events import Event
from ext_proc.sources.kubernetes import objectives
from tests.kube.following import POOL, SERVICE, Following, following
from tests.kube.objects import inference_pool, objective, pod
from tests.kube.server import OLDER, OLDER_GROUP, FakeApi
from tests.waiting import until

Follower = Callable[[float], Following]

GATEWAY = "gateway: {objectives: true}\n"
OBEYING = GATEWAY + "tenants: {priority_header: x-p}\n"
NAMES = "inferenceobjectives"


def priorities(made: Following) -> dict[str, int]:
    """Return what names mean now."""
    return dict(made.watching.objectives.priorities)


async def test_objectives_of_the_pool_are_priorities(api: FakeApi, follower: Follower) -> None:
    """Each that refers to the pool, without a priority as 0, from the moment that it comes until it goes."""
    api.put(inference_pool("vllm"), pod("a", "10.0.0.1"), objective("urgent", 1_000), objective("plain", None))
    api.put(objective("of-others", 5, pool="another"))
    async with following(follower(30.0), OBEYING + POOL) as made:
        await until(lambda: priorities(made) == {"urgent": 1_000, "plain": 0})
        api.put(objective("urgent", 7), objective("batch", -3))
        await until(lambda: priorities(made) == {"urgent": 7, "plain": 0, "batch": -3})
        api.delete(NAMES, "urgent")
        await until(lambda: priorities(made) == {"plain": 0, "batch": -3})
        assert made.failures() == []
        made.configure(POOL)
        assert priorities(made) == {}
        await until(lambda: api.watching(NAMES) == 0)


async def test_the_older_group_counts_less(api: FakeApi, follower: Follower) -> None:
    """Clusters that have not moved are understood; of one name in both groups the newer object holds."""
    older = [objective(name, 1, group=OLDER_GROUP) for name in ("both", "old")]
    api.put(inference_pool("vllm"), *older, objective("both", 2))
    async with following(follower(30.0), OBEYING + POOL) as made:
        await until(lambda: priorities(made) == {"both": 2, "old": 1})


async def test_pools_of_a_namespace_share_them(api: FakeApi, follower: Follower) -> None:
    """Objectives are read once per namespace, and each pool has its own."""
    api.put(objective("a", 1), objective("b", 2, pool="other"))
    both = POOL.replace("}}}", "}}, q: {models: [n], kubernetes: {namespace: default, inference_pool: other}}}")
    async with following(follower(30.0), OBEYING + both) as made:
        await until(lambda: priorities(made) == {"a": 1, "b": 2})
        await until(lambda: api.watching(NAMES) == api.watching(OLDER + NAMES) == 1)


def test_of_two_meanings_the_first_pool_s_holds() -> None:
    """In two namespaces one name may mean two things, and a request has but one priority."""
    assert objectives.merged([{"a": 1}, {"a": 2, "b": 3}]) == {"a": 1, "b": 3}


async def test_a_cluster_without_them_is_no_failure(
    api: FakeApi, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endpoints are known all the same; the objects are looked for seldom, found when they come, and lost quietly."""
    monkeypatch.setattr(objectives, "ABSENT_S", 0.3)
    api.absent = {NAMES, OLDER + NAMES}
    api.put(inference_pool("vllm"), pod("a", "10.0.0.1"), objective("urgent", 9))
    async with following(follower(1.0), OBEYING + POOL) as made:
        await until(lambda: made.has("10.0.0.1"))
        await until(lambda: sum(resource == NAMES for _, resource, _ in api.asked) == 2)
        assert (made.failures(), made.watching.is_degraded) == ([], False)
        api.absent = {OLDER + NAMES}
        await until(lambda: priorities(made) == {"urgent": 9})
        api.absent.add(NAMES)
        api.stores[NAMES].compact()
        await until(lambda: priorities(made) == {})
        assert made.failures() == []


async def test_a_missing_right_is_said_and_harms_nothing_else(api: FakeApi, follower: Follower) -> None:
    """Whoever has not granted it reads which namespace it is about; the pool is not degraded."""
    api.allowed = {(verb, each) for verb in ("list", "watch") for each in ("pods", "inferencepools")}
    api.put(inference_pool("vllm"), pod("a", "10.0.0.1"))
    async with following(follower(30.0), OBEYING + POOL) as made:
        await until(lambda: made.has("10.0.0.1") and made.failures() == ["forbidden"])
        ((_, fields),) = [said for said in made.said if said[0] is Event.SOURCE_FAILED]
        assert (fields["source"], fields["namespace"]) == ("objectives", "default")
        assert not made.watching.is_degraded
        api.allowed = None
        await until(lambda: any(event is Event.SOURCE_RECOVERED for event, _ in made.said))


@pytest.mark.parametrize("text", [POOL, OBEYING + SERVICE], ids=["not wanted", "no InferencePool"])
async def test_nothing_is_asked_where_nothing_is_needed(api: FakeApi, follower: Follower, text: str) -> None:
    """Who does not use them needs no right to read them."""
    async with following(follower(30.0), text):
        await until(lambda: len(api.asked) >= 2)
        assert not [resource for _, resource, _ in api.asked if resource.endswith(NAMES)]


async def test_requests_go_by_them(api: FakeApi, follower: Follower) -> None:
    """The configuration's own names go before; unknown names mean nothing, and neither does a number."""
    api.put(inference_pool("vllm"), objective("urgent", 1_000), objective("mine", 5), objective("7", 70))
    async with following(follower(30.0), OBEYING + POOL) as made:
        config = made.config(f"{GATEWAY}tenants: {{priority_header: x-p, priorities: {{mine: 1}}}}\n{POOL}")
        policy = exchange_policy(config, objectives=made.watching.objectives)
        assert policy.priority("urgent") == 0
        await until(lambda: policy.priority("urgent") == 1_000)
        assert [policy.priority(text) for text in ("mine", "7", "8", "other")] == [1, 70, 0, 0]
        policy = exchange_policy(made.config(POOL), objectives=made.watching.objectives)
        assert [policy.priority(text) for text in ("urgent", "8", "200")] == [0, 8, 100]
