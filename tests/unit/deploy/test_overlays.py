"""The Kustomize files as they lie there, without kubectl: objects, configurations, rights, rendered parts."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from ext_proc.bootstrap.binary import find_envoy, validate
from ext_proc.cli import main
from ext_proc.config import Config, parse
from tests.kube.following import Following, following
from tests.kube.objects import endpoint, endpoint_slice, inference_pool, pod
from tests.kube.schemas import problems
from tests.kube.server import FakeApi, rights
from tests.unit.deploy.overlays import KUSTOMIZE, OVERLAYS, config_text, is_endpoint_picker, overlay, written
from tests.waiting import until

NAMESPACE = "inference"
RENDERED = sorted(path for path in KUSTOMIZE.rglob("*.yaml") if path.read_text("utf-8").startswith("# Rendered by: "))
FOLLOWED = {
    name: ("follow-service" if name in {"envoy", "envoy-gateway", "sidecar"} else "follow-inference-pool")
    for name in OVERLAYS
}


def config(name: str) -> Config:
    """Read an overlay's configuration of kvpicker."""
    return parse((overlay(name) / "kvpicker.yaml").read_text("utf-8"))


def objects(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a file."""
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def test_objects_are_taken() -> None:
    """An API server takes each object once kustomize has given it the namespace."""
    found = list(written(KUSTOMIZE))
    assert len(found) > 30
    for path, document in found:
        document["metadata"].setdefault("namespace", NAMESPACE)
        assert problems(document) == [], path


def test_all_are_of_one_namespace() -> None:
    """What is rendered lies where kustomize puts the rest, and kvpicker looks there."""
    for _, document in written(KUSTOMIZE):
        assert document["metadata"].get("namespace", NAMESPACE) == NAMESPACE
    for name in OVERLAYS:
        for pool in config(name).pools.values():
            assert pool.kubernetes is not None
            assert pool.kubernetes.namespace == NAMESPACE


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_is_rendered_is_up_to_date(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first line of each rendered file is the command that renders it."""
    text = path.read_text("utf-8")
    command = text.splitlines()[0].removeprefix("# Rendered by: kvpicker ")
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == text, "make goldens"


def test_every_data_plane_is_rendered() -> None:
    """Each overlay has either an Envoy's configuration or a gateway's objects, and those are rendered."""
    assert {path.parent.name for path in RENDERED} == set(OVERLAYS)


@pytest.mark.envoy
@pytest.mark.parametrize("name", ["envoy", "sidecar"])
def test_envoy_takes_its_configuration(name: str, tmp_path: Path) -> None:
    """A real Envoy accepts it; what is asked for is the file of endpoints, which must exist."""
    (tmp_path / "eds.json").write_text("{}")
    validate((overlay(name) / "envoy.yaml").read_text("utf-8").replace("/run/kvpicker", str(tmp_path)), find_envoy())


@pytest.mark.parametrize("name", OVERLAYS)
def test_kvpicker_takes_its_configuration(name: str, tmp_path: Path) -> None:
    """`kvpicker check` is content, or `kvpicker epp --check`."""
    path = tmp_path / "kvpicker.yaml"
    path.write_text(config_text(name, tmp_path))
    words = ["epp", "--check", "--config"] if is_endpoint_picker(name) else ["check"]
    assert main([*words, str(path)]) == 0


@pytest.mark.parametrize("name", OVERLAYS)
async def test_the_rights_are_those_that_are_used(name: str, tmp_path: Path) -> None:
    """With the rights of its role, and no others, kvpicker knows the engines; and none of the rights is idle."""
    role, binding = objects(KUSTOMIZE / "components" / FOLLOWED[name] / "rbac.yaml")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    rules = role["rules"]
    api = FakeApi()
    api.allowed = rights(rules)
    text = config_text(name, tmp_path).replace(f"namespace: {NAMESPACE}", "namespace: default")
    if is_endpoint_picker(name):
        text += "gateway: {objectives: true}\ntenants: {priority_header: x-p}\n"  # as `kvpicker epp` has it
    service = parse(text).pools["chat"].kubernetes.service  # type: ignore[union-attr]
    api.put(inference_pool("vllm"), pod("a", "10.0.0.1"))
    api.put(endpoint_slice("s", service or "x", [endpoint("10.0.0.1", "u", ready=True)]))
    async with api.serving() as url, following(Following(url, tmp_path), text) as made:
        await until(lambda: made.addresses("chat") == {"10.0.0.1:8000"})
        await until(lambda: {(verb, resource) for verb, resource, _ in api.asked} == api.allowed)
        assert made.failures() == []
    names = {each for rule in rules for each in rule.get("resourceNames", ())}
    asked = {query["fieldSelector"] for _, _, query in api.asked if "fieldSelector" in query}
    assert asked == {f"metadata.name={each}" for each in names}


@pytest.mark.parametrize("name", OVERLAYS)
def test_pools_are_those_that_are_followed(name: str) -> None:
    """The InferencePool of a gateway is the one that kvpicker follows, and both would do the same without the other."""
    (pool,) = config(name).pools.values()
    assert pool.kubernetes is not None
    found = [each for _, each in written(overlay(name)) if each["kind"] == "InferencePool"]
    assert [each["metadata"]["name"] for each in found] == [
        each for each in (pool.kubernetes.inference_pool,) if each is not None
    ]
    modes = {"FailOpen": "open", "FailClose": "refuse"}
    for each in found:
        assert modes[each["spec"]["endpointPickerRef"]["failureMode"]] == config(name).failure_mode


def test_what_can_be_named_is_what_the_gateway_understands() -> None:
    """A list of engines goes only to those that take one."""
    planes = {name: config(name).envoy.data_plane for name in OVERLAYS}
    assert planes == {
        "envoy": "auto",
        "sidecar": "auto",
        "istio": "override-host",
        "envoy-gateway": "override-host",
        "envoy-ai-gateway": "original-dst",
        "kgateway": "subset",
    }


def test_nobody_waits_longer_than_envoy_gateway() -> None:
    """Kvpicker knows the patience of the policy, which has no second one."""
    (policy,) = (each for _, each in written(overlay("envoy-gateway")) if each["kind"] == "EnvoyExtensionPolicy")
    envoy = config("envoy-gateway").envoy
    assert policy["spec"]["extProc"][0]["messageTimeout"] == f"{envoy.message_timeout_s:.0f}s"
    assert envoy.max_message_timeout_s == 0
