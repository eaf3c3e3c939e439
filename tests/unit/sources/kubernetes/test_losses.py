"""Nothing is lost in any gap: a watch may be lost in every way, and the pool ends up as the cluster is."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable

import pytest

from ext_proc.sources.kubernetes import reflector
from tests.kube.following import POOL, Following, following
from tests.kube.objects import inference_pool, pod
from tests.kube.server import FakeApi, Loss
from tests.waiting import until

Follower = Callable[[float], Following]


@pytest.fixture
async def pool(api: FakeApi, follower: Follower) -> AsyncIterator[Following]:
    """Follow an InferencePool with a pod, and take a second of silence for death."""
    api.put(inference_pool("vllm"), pod("a", "10.0.0.1"))
    async with following(follower(1.0), POOL) as made:
        await until(lambda: made.has("10.0.0.1") and api.watching("pods") == 1)
        yield made


def lists(api: FakeApi) -> int:
    """Count the lists of pods."""
    return sum((verb, resource) == ("list", "pods") for verb, resource, _ in api.asked)


@pytest.mark.parametrize("loss", Loss)
async def test_changes_around_a_loss_arrive(api: FakeApi, pool: Following, loss: Loss) -> None:
    """What changes before, in and after the gap arrives, whichever way the watch was lost."""
    api.lose(loss)
    api.put(pod("b", "10.0.0.2"))
    api.delete("pods", "a")
    await until(lambda: pool.has("10.0.0.2"))
    await until(lambda: api.watching("pods") == 1)
    api.put(pod("c", "10.0.0.3"))
    await until(lambda: pool.has("10.0.0.2", "10.0.0.3"))
    assert pool.failures() == []
    if loss in (Loss.GONE, Loss.COMPACTED):
        assert lists(api) == 2
    else:
        assert lists(api) == 1


async def test_forgotten_version_may_be_said_in_the_stream(api: FakeApi, pool: Following) -> None:
    """A server that answers 200 and then says that the version is gone is one that has to be listed again."""
    api.gone_in_stream = True
    api.lose(Loss.COMPACTED)
    api.delete("pods", "a")
    api.put(pod("b", "10.0.0.2"))
    await until(lambda: pool.has("10.0.0.2"))


async def test_bookmarks_save_lists(api: FakeApi, follower: Follower) -> None:
    """A quiet watch learns by bookmarks how far it is, so that a loss after much forgetting needs no list."""
    api.bookmarks_s = 0.1
    api.put(inference_pool("vllm"), pod("a", "10.0.0.1"))
    async with following(follower(1.0), POOL) as made:
        await until(lambda: made.has("10.0.0.1") and api.watching("pods") == 1)
        api.put(pod("x", "10.0.0.9", labels={"app": "another"}))
        version = str(api.clock.now)
        (watch,) = made.watching._source._watches.values()
        assert watch._pods is not None
        followed = watch._pods._reflection
        await until(lambda: followed.version == version)
        api.pods.compact()
        api.pods.forgotten = int(version)
        api.lose(Loss.CUT)
        api.put(pod("b", "10.0.0.2"))
        await until(lambda: made.has("10.0.0.1", "10.0.0.2"))
        assert lists(api) == 1


async def test_list_that_is_forgotten_between_its_pages(
    api: FakeApi, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list whose continuation is forgotten is made anew, in one piece."""
    monkeypatch.setattr(reflector, "PAGE", 2)
    api.put(inference_pool("vllm"), *(pod(f"p{n}", f"10.0.0.{n}") for n in range(1, 6)))
    page, first = api.pods.page, [True]

    def forgetting(*arguments: object) -> object:
        found = page(*arguments)  # type: ignore[arg-type]
        if first.pop() if first else False:
            api.pods.compact()
        return found

    monkeypatch.setattr(api.pods, "page", forgetting)
    async with following(follower(30.0), POOL) as made:
        await until(lambda: len(made.addresses()) == 5)
    limits = [query.get("limit") for verb, resource, query in api.asked if (verb, resource) == ("list", "pods")]
    assert limits == ["2", "2", None]


async def test_server_that_is_away_leaves_the_last_good_endpoints(
    api: FakeApi, pool: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an API server the endpoints stay and kvpicker says it is degraded; then the changes arrive (E22)."""
    monkeypatch.setattr(reflector, "LONGEST_WAIT_S", 0.3)
    api.refusals += [(503, {})] * 10
    api.lose(Loss.CUT)
    api.put(pod("b", "10.0.0.2"))
    await until(lambda: pool.watching.is_degraded)
    assert pool.has("10.0.0.1")
    assert pool.failures() == ["http_503"]
    await until(lambda: pool.has("10.0.0.1", "10.0.0.2"))
    await until(lambda: not pool.watching.is_degraded)


async def test_server_that_accepts_and_never_answers(
    api: FakeApi, pool: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence at the connect is a failure like any other (E22)."""
    monkeypatch.setattr(reflector, "LONGEST_WAIT_S", 0.3)
    monkeypatch.setattr(reflector, "_TRIES", 1)
    api.hangs = True
    api.lose(Loss.CUT)
    await until(lambda: pool.failures()[-1:] == ["timeout"])
    assert pool.has("10.0.0.1")
    api.hangs = False
    api.put(pod("b", "10.0.0.2"))
    await until(lambda: pool.has("10.0.0.1", "10.0.0.2"))


async def test_busy_server_is_left_alone_as_long_as_it_asks(api: FakeApi, pool: Following) -> None:
    """A Retry-After is heeded."""
    api.refusals.append((429, {"Retry-After": "1"}))
    api.lose(Loss.END, "pods")
    await until(lambda: not api.refusals)
    asked, began = len(api.asked), time.monotonic()
    api.put(pod("b", "10.0.0.2"))
    await until(lambda: pool.has("10.0.0.1", "10.0.0.2"))
    assert time.monotonic() - began > 0.9
    assert [verb for verb, resource, _ in api.asked[asked:] if resource == "pods"] == ["watch"]


async def test_silent_watches_end_in_a_list(api: FakeApi, pool: Following) -> None:
    """A server whose watches never say anything is not believed for ever: the next list tells."""
    silent = [
        (query["resourceVersion"]) for verb, resource, query in api.asked if (verb, resource) == ("watch", "pods")
    ]
    assert len(silent) == 1
    api.lose(Loss.STALL)
    await until(lambda: api.watching("pods") == 1)
    api.lose(Loss.STALL)
    await until(lambda: api.watching("pods") == 1)
    api.lose(Loss.STALL)
    await until(lambda: lists(api) == 2)
    assert pool.failures() == []


async def test_random_losses_and_changes_end_at_the_truth(api: FakeApi, pool: Following) -> None:
    """After many changes with losses of all kinds in between, the pool is what the cluster is."""
    generator = random.Random(7)
    kinds = [*Loss, None, None, None, None]
    for step in range(60):
        name = f"p{generator.randrange(20)}"
        if generator.random() < 0.3 and name in api.pods.objects:
            api.delete("pods", name)
        else:
            ready = generator.random() < 0.8
            api.put(pod(name, f"10.0.1.{name[1:]}", ready=ready, uid=f"{name}-{generator.randrange(2)}"))
        loss = generator.choice(kinds)
        if loss is not None and step % 5 == 0:
            api.lose(loss)
        if step % 10 == 0:
            await until(lambda: api.watching("pods") == 1)

    def truth() -> set[str]:
        pods = api.pods.objects.values()
        return {
            f"{item['status']['podIP']}:8000" for item in pods if item["status"]["conditions"][1]["status"] == "True"
        }

    await until(lambda: pool.addresses() == truth())
