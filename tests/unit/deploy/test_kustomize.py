"""What kubectl makes of the overlays, without a cluster: whole, consistent and locked down."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from ext_proc.cli import parser
from ext_proc.config import parse
from ext_proc.epp.command import configured
from tests.kube.schemas import problems
from tests.unit.deploy.overlays import (
    KUSTOMIZE,
    NEEDS_KUBECTL,
    OVERLAYS,
    Body,
    built,
    containers,
    has_kubectl,
    named,
    of,
    overlay,
    workloads,
)

pytestmark = pytest.mark.skipif(not has_kubectl(), reason=NEEDS_KUBECTL)


@pytest.fixture(params=OVERLAYS)
def name(request: pytest.FixtureRequest) -> str:
    """Name an overlay."""
    found: str = request.param
    return found


@pytest.fixture
def documents(name: str) -> list[Body]:
    """Put the overlay together."""
    return built(overlay(name))


def pickers(documents: list[Body]) -> list[tuple[Body, Body]]:
    """Return each container of kvpicker with its workload."""
    return [
        (workload, each)
        for workload in workloads(documents)
        for each in containers(workload)
        if each["name"] == "kvpicker"
    ]


def labels(workload: Body) -> dict[str, str]:
    """Return the labels of a workload's pods."""
    found: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return found


def chosen(selector: dict[str, str], documents: list[Body]) -> list[Body]:
    """Return the workloads whose pods have all the labels."""
    return [each for each in workloads(documents) if selector.items() <= labels(each).items()]


def test_everything_is_taken(documents: list[Body]) -> None:
    """An API server takes each object, no two have the same name, and all lie in one namespace."""
    for each in documents:
        assert problems(each) == [], each["metadata"]["name"]
    names = [(each["kind"], each["metadata"]["name"]) for each in documents]
    assert len(set(names)) == len(names)
    assert {each["metadata"]["namespace"] for each in documents} == {"inference"}


def test_pods_are_locked_down(documents: list[Body]) -> None:
    """No container may be root, gain rights, write to its file system, or keep a capability."""
    for workload in workloads(documents):
        pod = workload["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 1000
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any(pod.get(word) for word in ("hostNetwork", "hostPID", "hostIPC"))
        for each in containers(workload):
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert each["resources"]["requests"].keys() == {"cpu", "memory"}
            assert "memory" in each["resources"]["limits"]


def test_images_are_pinned(documents: list[Body]) -> None:
    """Each image has a version."""
    for workload in workloads(documents):
        for each in containers(workload):
            assert each["image"].rpartition(":")[2] not in {"", "latest", each["image"]}


def test_references_lead_somewhere(documents: list[Body]) -> None:
    """Volumes, ports, accounts, selectors and ConfigMaps are those of other objects."""
    for workload in workloads(documents):
        pod = workload["spec"]["template"]["spec"]
        volumes = {each["name"]: each for each in pod["volumes"]}
        for each in containers(workload):
            assert {mount["name"] for mount in each.get("volumeMounts", ())} <= volumes.keys()
        used = {mount["name"] for each in containers(workload) for mount in each.get("volumeMounts", ())}
        assert used == volumes.keys()
        for volume in volumes.values():
            if "configMap" in volume:
                assert named(documents, "ConfigMap", volume["configMap"]["name"])
        if "serviceAccountName" in pod:
            assert named(documents, "ServiceAccount", pod["serviceAccountName"])
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels(workload).items()
    for each in of(documents, "PodDisruptionBudget"):
        assert len(chosen(each["spec"]["selector"]["matchLabels"], documents)) == 1
    for each in of(documents, "NetworkPolicy"):
        assert len(chosen(each["spec"]["podSelector"]["matchLabels"], documents)) == 1
    for each in of(documents, "RoleBinding"):
        assert named(documents, "Role", each["roleRef"]["name"])
        for subject in each["subjects"]:
            assert named(documents, "ServiceAccount", subject["name"])
            assert subject["namespace"] == "inference"


def test_services_lead_to_ports(documents: list[Body]) -> None:
    """Each Service chooses pods of ours and a port that they have; those of engines and single pods excepted."""
    for each in of(documents, "Service"):
        selector = each["spec"]["selector"]
        if selector == {"app": "vllm"} or "statefulset.kubernetes.io/pod-name" in selector:
            continue
        (workload,) = chosen(selector, documents)
        ports = {port["name"]: port["containerPort"] for box in containers(workload) for port in box["ports"]}
        for port in each["spec"]["ports"]:
            assert port["targetPort"] in ports


def test_single_pods_are_those_of_the_stateful_set(documents: list[Body]) -> None:
    """Where a process is spoken to by its name, there is one of that name."""
    pods = {
        f"{each['metadata']['name']}-{number}"
        for each in of(documents, "StatefulSet")
        for number in range(each["spec"]["replicas"])
    }
    chosen_pods = {
        each["spec"]["selector"]["statefulset.kubernetes.io/pod-name"]
        for each in of(documents, "Service")
        if "statefulset.kubernetes.io/pod-name" in each["spec"]["selector"]
    }
    assert chosen_pods in (set(), pods)


def test_kvpickers_command_is_one(documents: list[Body]) -> None:
    """The arguments are a command of kvpicker with the file that is mounted."""
    ((_, container),) = pickers(documents)
    words = container["args"]
    assert str(parser().parse_args(words).config) == "/etc/kvpicker/kvpicker.yaml"
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["config"] == "/etc/kvpicker"
    assert mounts["admin-token"] == "/etc/kvpicker-admin"


def test_kvpicker_listens_where_it_is_asked(documents: list[Body], tmp_path: Path) -> None:
    """Ports of the container, its probes and the configuration agree, that of `kvpicker epp` completed by itself."""
    ((_, container),) = pickers(documents)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    text = named(documents, "ConfigMap", "kvpicker")["data"]["kvpicker.yaml"]
    config = parse(text)
    if container["args"][0] == "epp":
        (tmp_path / "kvpicker.yaml").write_text(text)
        words = ["epp", "--config", str(tmp_path / "kvpicker.yaml")]
        config, _, _ = configured(parser().parse_args(words), "")
        assert config.tls is not None
        assert config.health_listen == (f"0.0.0.0:{ports['health']}",)
        assert container["livenessProbe"]["grpc"] == {"port": ports["health"], "service": "liveness"}
    addresses = {address.rpartition(":")[2] for address in config.listen if not address.startswith("unix:")}
    assert {str(port) for label, port in ports.items() if label == "grpc"} == addresses
    assert config.admin.listen == f"0.0.0.0:{ports['admin']}"
    assert config.admin.pages == "all", "engines that end ask for drains"
    readiness = container.get("readinessProbe") or container["startupProbe"]
    assert readiness["httpGet"] == {"path": "/readyz", "port": "admin"}


def test_kvpicker_may_end_in_order(documents: list[Body]) -> None:
    """The time that a stop may take covers what kvpicker takes, with five seconds to spare."""
    ((workload, _),) = pickers(documents)
    config = parse(named(documents, "ConfigMap", "kvpicker")["data"]["kvpicker.yaml"])
    grace = workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace >= config.drain_s + config.passing_s + 5


def test_envoy_sleeps_before_it_ends(documents: list[Body]) -> None:
    """The sleep fits into the time that a stop may take."""
    for workload in workloads(documents):
        for each in containers(workload):
            if each["name"] == "envoy":
                slept = each["lifecycle"]["preStop"]["sleep"]["seconds"]
                assert slept < workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]


def test_only_data_planes_reach_kvpicker(name: str, documents: list[Body]) -> None:
    """The port that sees prompts is open to some pods only; where Envoy is ours, to ours."""
    (policy,) = of(documents, "NetworkPolicy")
    rules = {port["port"]: rule.get("from") for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert rules[9090]
    if name == "sidecar":
        assert 9002 not in rules
        return
    (peer,) = rules[9002]
    assert peer["podSelector"]["matchLabels"]
    if name == "envoy":
        (workload,) = chosen(peer["podSelector"]["matchLabels"], documents)
        assert workload["metadata"]["name"] == "envoy"


def test_both_use_one_socket() -> None:
    """Envoy and its sidecar share a folder, in which kvpicker makes the socket and the file that Envoy reads."""
    documents = built(overlay("sidecar"))
    texts = {key: text for each in of(documents, "ConfigMap") for key, text in each["data"].items()}
    config = parse(texts["kvpicker.yaml"])
    (address,) = config.listen
    assert f"path: {address.removeprefix('unix:')}\n" in texts["envoy.yaml"]
    assert f"path: {config.envoy.endpoints_file}\n" in texts["envoy.yaml"]
    (workload,) = workloads(documents)
    mounts = [
        {mount["name"]: mount["mountPath"] for mount in each["volumeMounts"]}["run"] for each in containers(workload)
    ]
    assert mounts == ["/run/kvpicker"] * 2
    assert workload["spec"]["template"]["spec"]["initContainers"][0]["restartPolicy"] == "Always"


def test_engines_drain_before_they_end(tmp_path: Path) -> None:
    """The component gives an engine's Deployment a hook that asks each kvpicker, and the time that it takes."""
    shutil.copytree(KUSTOMIZE / "components" / "drain-engines", tmp_path / "drain-engines")
    (tmp_path / "engines").mkdir()
    kustomization: dict[str, Any] = {"resources": ["engine.yaml"], "components": ["../drain-engines"]}
    (tmp_path / "engines" / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    pod = {"containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.11.0"}]}
    engine = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "vllm", "labels": {"app": "vllm"}},
        "spec": {
            "selector": {"matchLabels": {"app": "vllm"}},
            "template": {"metadata": {"labels": {"app": "vllm"}}, "spec": pod},
        },
    }
    (tmp_path / "engines" / "engine.yaml").write_text(yaml.safe_dump(engine))
    (made,) = built(tmp_path / "engines")
    assert problems(made) == []
    spec = made["spec"]["template"]["spec"]
    script = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][2]
    picker = named(built(overlay("envoy")), "StatefulSet", "kvpicker")
    pods = {f"kvpicker-{number}" for number in range(picker["spec"]["replicas"])}
    assert pods == set(script.partition("in ")[2].partition(";")[0].split())
    assert spec["containers"][0]["image"] == "vllm/vllm-openai:v0.11.0"
    assert spec["terminationGracePeriodSeconds"] > 610
