"""Credentials and authorities may change while kvpicker runs, and what is missing is said before it starts."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ext_proc.config import KubernetesConfig, parse
from ext_proc.core.errors import ConfigError
from ext_proc.sources.kubernetes import reflector
from ext_proc.sources.kubernetes.access import ClusterAccess, CredentialsError, check_reachable
from ext_proc.sources.kubernetes.objects import Kind, Pod
from ext_proc.sources.kubernetes.reflector import Reflector
from tests.kube.certificates import Authority
from tests.kube.following import POOL, Following, following
from tests.kube.objects import inference_pool, pod
from tests.kube.server import FakeApi, Loss
from tests.waiting import until


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon."""
    monkeypatch.setattr(reflector, "LONGEST_WAIT_S", 0.3)


async def test_rotated_token_is_read_again(api: FakeApi, url: str, tmp_path: Path) -> None:
    """A token that is no longer accepted is replaced by the one that the file holds by then."""
    token = tmp_path / "token"
    token.write_text("first")
    api.tokens = {"first"}
    api.put(inference_pool("vllm"), pod("a", "10.0.0.1"))
    async with following(Following(url, tmp_path, user={"tokenFile": str(token)}), POOL) as made:
        await until(lambda: made.has("10.0.0.1"))
        api.tokens = {"second"}
        api.lose(Loss.CUT)
        api.put(pod("b", "10.0.0.2"))
        await until(lambda: made.failures() == ["unauthorized"])
        assert made.has("10.0.0.1")
        assert made.watching.is_degraded
        token.write_text("second")
        await until(lambda: made.has("10.0.0.1", "10.0.0.2"))
        await until(lambda: not made.watching.is_degraded)


async def test_rotated_authority_is_read_again(api: FakeApi, tmp_path: Path) -> None:
    """TLS is checked by the authority in the file, also when that becomes another one."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    trusted = tmp_path / "ca.crt"
    trusted.write_bytes(old.path.read_bytes())
    api.put(inference_pool("vllm"), pod("a", "10.0.0.1"))
    async with AsyncExitStack() as stack:
        async with api.serving(old.server()) as url:
            made = Following(url, tmp_path, cluster={"certificate-authority": str(trusted)})
            await stack.enter_async_context(following(made, POOL))
            await until(lambda: made.has("10.0.0.1"))
        api = _successor(api)
        api.put(pod("b", "10.0.0.2"))
        await stack.enter_async_context(api.serving(new.server(), urlsplit(url).port or 0))
        await until(lambda: made.failures()[-1:] == ["tls"])
        assert made.has("10.0.0.1")
        trusted.write_bytes(new.path.read_bytes())
        await until(lambda: made.has("10.0.0.1", "10.0.0.2"))


def _successor(api: FakeApi) -> FakeApi:
    """Return a server that knows what another one knew."""
    after = FakeApi()
    after.clock, after.stores = api.clock, api.stores
    return after


async def test_missing_right_is_named(api: FakeApi, url: str, tmp_path: Path) -> None:
    """Without a right the pool stays unknown, kvpicker says why, and the right is used once it is given."""
    api.put(inference_pool("vllm"), pod("a", "10.0.0.1"))
    api.allowed = {("list", "inferencepools"), ("watch", "inferencepools"), ("list", "pods")}
    async with following(Following(url, tmp_path), POOL) as made:
        await until(lambda: made.failures() == ["forbidden"])
        assert made.watching.is_degraded
        api.allowed.add(("watch", "pods"))
        await until(lambda: not made.watching.is_degraded)
        assert made.has("10.0.0.1")


async def test_missing_resource_is_named(api: FakeApi, url: str, tmp_path: Path) -> None:
    """A cluster without the InferencePool resource is no empty pool."""
    api.absent.add("inferencepools")
    async with following(Following(url, tmp_path), POOL) as made:
        await made.watching.answered()
        assert made.failures() == ["not_found"]
        assert made.watching.is_degraded


async def test_service_account_of_a_pod(api: FakeApi, tmp_path: Path) -> None:
    """In a cluster the token, the authority and the address are where Kubernetes puts them."""
    authority = Authority(tmp_path, "ca")
    (tmp_path / "token").write_text("secret")
    api.tokens = {"secret"}
    api.put(pod("a", "10.0.0.1"))
    async with api.serving(authority.server()) as url:
        found = urlsplit(url)
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(found.port)}
        reflected = Reflector(
            ClusterAccess(KubernetesConfig(), environ, tmp_path),
            Kind(Pod),
            "/api/v1/namespaces/default/pods",
            {},
            inactivity=30.0,
            on_change=lambda: None,
            on_state=lambda: None,
            rng=random.Random(0),
        )
        reflected._reflection.begin_list()
        async with reflected._access.open() as session:
            await reflected._list(session)
    assert list(reflected.objects) == ["uid-a"]


async def test_unreadable_credentials_are_no_end(tmp_path: Path) -> None:
    """A file that is missing or broken is one failure among others."""
    (tmp_path / "broken").write_text("current-context: nowhere")
    for config in (
        KubernetesConfig(kubeconfig=str(tmp_path / "missing")),
        KubernetesConfig(kubeconfig=str(tmp_path / "broken")),
        KubernetesConfig(),
    ):
        with pytest.raises(CredentialsError):
            async with ClusterAccess(config, {}, tmp_path).open():
                pass


def test_cluster_must_be_named_outside_of_one(tmp_path: Path) -> None:
    """Without a service account the configuration has to name a kubeconfig that exists."""
    with pytest.raises(ConfigError, match=r"kubernetes.kubeconfig: kvpicker does not run in a cluster"):
        check_reachable(parse(POOL), {})
    check_reachable(parse(POOL), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    with pytest.raises(ConfigError, match=r"kubernetes.kubeconfig: there is no such file"):
        check_reachable(parse(f"kubernetes: {{kubeconfig: {tmp_path / 'missing'}}}\n{POOL}"), {})
    check_reachable(parse("pools: {p: {endpoints: ['10.0.0.1:80']}}"), {})
