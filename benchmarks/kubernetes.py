"""How soon a pool is what the cluster is, and at which cost: pods come and go while watches are lost.

A fake API server, with TLS, runs here; another process follows it, with all that follows a change of endpoints: the
registry, the state per endpoint, Envoy's endpoints file. Needs a checkout, since the server is that of the tests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import yaml

from tests.kube.certificates import Authority
from tests.kube.objects import inference_pool, pod
from tests.kube.server import FakeApi, Loss

LATE_S = 2.0
MOST_CPU = 0.10
SILENCE_S = 1.0
"""After so much silence a connection is made anew; short, so that stalls are seen in time as well."""

STEPS_S = (0.3, 0.9)
"""Between two stages of a pod's life."""

Timeline = Mapping[str, Sequence[tuple[float, bool]]]
"""When each address came (true) and went."""


class Cluster:
    """Pods that are replaced one by one, and when each change was made.

    Args:
        api: the server.
        count: pods at the beginning.
        generator: chooses.
    """

    def __init__(self, api: FakeApi, count: int, generator: random.Random) -> None:
        self.truth: defaultdict[str, list[tuple[float, bool]]] = defaultdict(list)
        self.living = [f"p{number}" for number in range(count)]
        self._api = api
        self._next = count
        self._generator = generator
        api.put(inference_pool("vllm"), *(pod(name, _ip(name)) for name in self.living))
        for name in self.living:
            self._note(name, present=True)

    async def replace(self) -> None:
        """End a pod, and start another one in its place."""
        old = self.living.pop(self._generator.randrange(len(self.living)))
        new = f"p{self._next}"
        self._next += 1
        self._api.put(pod(old, _ip(old), terminating=True))
        self._note(old, present=False)
        self._api.put(pod(new, None, ready=False, phase="Pending"))
        await self._pause()
        self._api.put(pod(new, _ip(new), ready=False))
        await self._pause()
        self._api.delete("pods", old)
        self._api.put(pod(new, _ip(new)))
        self._note(new, present=True)
        self.living.append(new)

    async def _pause(self) -> None:
        await asyncio.sleep(self._generator.uniform(*STEPS_S))

    def _note(self, name: str, *, present: bool) -> None:
        self.truth[f"{_ip(name)}:8000"].append((time.monotonic(), present))


def _ip(name: str) -> str:
    number = int(name[1:])
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def lags(truth: Timeline, seen: Timeline, since: float) -> list[float]:
    """Return how long each change after a moment took; infinite if it was never seen, nor replaced by a later one."""
    found = []
    for address, changes in truth.items():
        times = [at for at, _ in seen.get(address, ())]
        states = [present for _, present in seen.get(address, ())]
        ends = [at for at, _ in changes[1:]] + [float("inf")]
        for (at, present), end in zip(changes, ends, strict=True):
            if at < since:
                continue
            first = bisect_left(times, at)
            known = states[first - 1] if first else False
            match = (
                at
                if known == present
                else next(
                    (time for time, state in zip(times[first:], states[first:], strict=True) if state == present), end
                )
            )
            found.append(min(match, end) - at)
    return found


async def _churn(cluster: Cluster, per_second: float, seconds: float) -> None:
    async with asyncio.TaskGroup() as group:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            group.create_task(cluster.replace())
            await asyncio.sleep(1.0 / per_second)


async def _lose(api: FakeApi, every: float, lost: list[str]) -> None:
    for loss in cycle(Loss):
        await asyncio.sleep(every)
        api.lose(loss)
        lost.append(loss.value)


def _configuration(directory: Path, url: str, authority: Path) -> Path:
    kubeconfig = {
        "current-context": "fake",
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        "users": [{"name": "fake", "user": {}}],
        "clusters": [{"name": "fake", "cluster": {"server": url, "certificate-authority": str(authority)}}],
    }
    (directory / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    access = {"kubeconfig": str(directory / "kubeconfig"), "inactivity_s": SILENCE_S}
    pool = {"models": ["m"], "kubernetes": {"namespace": "default", "inference_pool": "vllm"}}
    path = directory / "kvpicker.yaml"
    path.write_text(yaml.safe_dump({"kubernetes": access, "pools": {"p": pool}}))
    return path


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Let pods come and go, and compare."""
    api, generator = FakeApi(), random.Random(options.seed)  # noqa: S311  reproducible
    api.bookmarks_s = SILENCE_S / 2
    cluster = Cluster(api, options.pods, generator)
    lost: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        authority = Authority(Path(scratch), "ca")
        async with api.serving(authority.server()) as url:
            path = _configuration(Path(scratch), url, authority.path)
            pipe = asyncio.subprocess.PIPE
            follower = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.kubernetes_follower", str(path), stdin=pipe, stdout=pipe
            )
            said: list[dict[str, Any]] = []
            reading = asyncio.create_task(_read(follower, said))
            try:
                while not any("ready" in line for line in said) and follower.returncode is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                began = time.monotonic()
                losing = asyncio.create_task(_lose(api, options.loss_every, lost))
                await _churn(cluster, options.pods * options.churn / 60, options.seconds)
                losing.cancel()
                await asyncio.sleep(LATE_S)
            finally:
                if follower.stdin is not None:
                    follower.stdin.close()
                await asyncio.wait_for(follower.wait(), 20)
                await reading
    return _result(options, cluster, said, lost, began)


async def _read(follower: asyncio.subprocess.Process, said: list[dict[str, Any]]) -> None:
    assert follower.stdout is not None  # noqa: S101  it is a pipe
    rest = b""
    while chunk := await follower.stdout.read(1 << 20):
        *lines, rest = (rest + chunk).split(b"\n")
        said.extend(map(json.loads, lines))


def _result(
    options: argparse.Namespace, cluster: Cluster, said: list[dict[str, Any]], lost: list[str], began: float
) -> dict[str, Any]:
    seen: defaultdict[str, list[tuple[float, bool]]] = defaultdict(list)
    for line in said:
        for key, present in (("removed", False), ("added", True)):
            for address in line.get(key, ()):
                seen[address].append((line["at"], present))
    found = sorted(lags(cluster.truth, seen, began))
    now = {address for address, changes in seen.items() if changes[-1][1]}
    truth = {address for address, changes in cluster.truth.items() if changes[-1][1]}
    last = said[-1]
    share, late = last["cpu"] / last["seconds"], sum(lag > LATE_S for lag in found)
    percentiles = statistics.quantiles(found, n=100)
    return {
        "pods": options.pods,
        "seconds": round(last["seconds"], 1),
        "lost_watches": lost,
        "changes": len(found),
        "lag_ms": {"p50": _ms(percentiles[49]), "p99": _ms(percentiles[98]), "max": _ms(found[-1])},
        "late": late,
        "equal": now == truth,
        "failures": [line for line in said if line.get("event") == "source_failed"],
        "cpu_share": round(share, 4),
        "ok": now == truth and not late and share < MOST_CPU,
    }


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)


def main() -> int:
    """Run, print a table and one JSON object, and fail if a change was late or the cost too high."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=2_000)
    parser.add_argument("--churn", type=float, default=0.2, help="share of the pods that is replaced in a minute")
    parser.add_argument("--loss-every", type=float, default=10.0, help="seconds between two lost watches")
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--seed", type=int, default=1)
    result = asyncio.run(run(parser.parse_args()))
    for name, value in result.items():
        print(f"{name:14} {value}")
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
