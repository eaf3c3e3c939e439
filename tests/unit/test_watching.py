"""A whole kvpicker whose endpoints come from a cluster: its start, its reload and its pages."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from ext_proc import watching
from ext_proc.app import Service
from ext_proc.assembly import check
from ext_proc.config import load
from ext_proc.core.errors import ConfigError
from ext_proc.core.pool import EndpointSpec, Registry
from ext_proc.sources.eds import EdsWriter
from ext_proc.sources.kubernetes import access
from tests.kube.following import Following
from tests.kube.objects import inference_pool, pod
from tests.kube.server import FakeApi, Loss
from tests.waiting import until

CONFIG = """
listen: ["127.0.0.1:0"]
admin: {{listen: "127.0.0.1:0"}}
drain_s: 0
scrape: {{enabled: false}}
envoy: {{endpoints_file: {directory}/eds.json}}
kubernetes: {{kubeconfig: {directory}/kubeconfig}}
pools:
  main:
    models: [acme/chat-8b]
    kubernetes: {{namespace: default, inference_pool: {pool}}}
"""


class Site:
    """An API server, and a kvpicker that is not started yet."""

    def __init__(self, directory: Path, url: str) -> None:
        Following(url, directory)  # for its kubeconfig
        self.directory = directory
        self.path = directory / "kvpicker.yaml"
        self.output = io.BytesIO()
        self.write("vllm")
        self.service = Service(load(self.path), self.path, self.output)

    def write(self, pool: str) -> None:
        """Write the configuration with the name of the InferencePool."""
        self.path.write_text(CONFIG.format(directory=self.directory, pool=pool))

    def addresses(self) -> set[str]:
        """Return the endpoints."""
        return set(self.service._core.registry.snapshot.by_address)

    def hosts(self) -> set[str]:
        """Return the hosts in Envoy's file."""
        (resource,) = json.loads((self.directory / "eds.json").read_text())["resources"]
        hosts = [host for locality in resource["endpoints"] for host in locality["lb_endpoints"]]
        return {host["endpoint"]["address"]["socket_address"]["address"] for host in hosts}


@pytest.fixture
async def api() -> FakeApi:
    """Make a server with two pods."""
    made = FakeApi()
    made.put(inference_pool("vllm"), pod("a", "10.0.0.1"), pod("b", "10.0.0.2"))
    return made


@pytest.fixture
async def site(api: FakeApi, tmp_path: Path) -> AsyncIterator[Site]:
    """Serve, and prepare a kvpicker."""
    async with api.serving() as url:
        yield Site(tmp_path, url)


async def test_ready_means_that_the_endpoints_are_known(api: FakeApi, site: Site) -> None:
    """Once kvpicker has started it knows the endpoints, and so does Envoy; losses and reloads change nothing."""
    async with site.service as service:
        assert site.addresses() == {"10.0.0.1:8000", "10.0.0.2:8000"}
        assert site.hosts() == {"10.0.0.1", "10.0.0.2"}
        url = f"http://{service.admin_address}/metrics"
        async with aiohttp.ClientSession() as client, client.get(url) as page:
            assert 'kvpicker_degraded{reason="kubernetes"} 0.0' in await page.text()
        api.lose(Loss.COMPACTED)
        api.delete("pods", "a")
        await until(lambda: site.hosts() == {"10.0.0.2"})
        api.put(inference_pool("other", {"app": "other"}), pod("o", "10.0.0.9", labels={"app": "other"}))
        site.write("other")
        await until(lambda: site.hosts() == {"10.0.0.9"})
    assert b"Traceback" not in site.output.getvalue()


async def test_a_pool_that_leaves_the_cluster_goes_by_its_list_alone(api: FakeApi, site: Site) -> None:
    """A pod is not ready; then the pool lists the same address by itself, and nobody says any more that it is not."""
    async with site.service as service:
        api.put(pod("a", "10.0.0.1", ready=False))
        stages = lambda: {mark.endpoint.address: mark.stage for mark, _ in service._draining.listed()}  # noqa: E731
        await until(lambda: stages().get("10.0.0.1:8000") == "unready")
        text = site.path.read_text()
        listed = text.replace("kubernetes: {namespace: default, inference_pool: vllm}", 'endpoints: ["10.0.0.1:8000"]')
        site.path.write_text(listed)
        await until(lambda: stages() == {"10.0.0.1:8000": "active"})


async def test_start_without_an_api_server(
    api: FakeApi, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kvpicker starts all the same, says it is degraded, and leaves Envoy what an earlier process wrote."""
    monkeypatch.setattr(watching, "ANSWERED_WITHIN_S", 0.2)
    earlier = Registry()
    earlier.replace("main", [EndpointSpec(address="10.0.0.7:80")])
    EdsWriter(tmp_path / "eds.json", "kvpicker_endpoints").write(earlier.snapshot)
    api.hangs = True
    async with site.service as service:
        assert service._degraded()["kubernetes"]
        assert site.addresses() == set()
        assert site.hosts() == {"10.0.0.7"}


async def test_reload_that_cannot_be_followed_is_refused(site: Site) -> None:
    """Without a kubeconfig there is no cluster to follow here; the last good configuration stays."""
    async with site.service as service:
        text = site.path.read_text()
        site.path.write_text(text.replace(f"{site.directory}/kubeconfig", "/nowhere/kubeconfig"))
        await until(lambda: b"config_rejected" in site.output.getvalue())
        assert b"kubernetes.kubeconfig: there is no such file" in site.output.getvalue()
        assert service._degraded()["config"]
        assert len(site.addresses()) == 2


def test_missing_package_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kvpicker check` says what to install."""
    monkeypatch.setattr(access, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pools.main.kubernetes: needs a package .*'kvpicker\[kubernetes\]'"):
        check(site.path)
