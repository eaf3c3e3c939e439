"""The Kustomize overlays: their files as they lie there, and what kubectl makes of them."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import yaml

Body: TypeAlias = dict[str, Any]

ROOT = Path(__file__).parents[3]
KUSTOMIZE = ROOT / "deploy" / "kustomize"
OVERLAYS = sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())
NEEDS_KUBECTL = "kubectl is not here; it puts overlays together, without a cluster"
TOKEN_FILE = "/etc/kvpicker-admin/token"


def has_kubectl() -> bool:
    """Whether overlays can be put together here."""
    return shutil.which("kubectl") is not None


def overlay(name: str) -> Path:
    """Return the folder of an overlay."""
    return KUSTOMIZE / "overlays" / name


@functools.cache
def _built(folder: Path) -> str:
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def built(folder: Path) -> list[Body]:
    """Let kubectl put an overlay together."""
    return [each for each in yaml.safe_load_all(_built(folder)) if each]


def written(folder: Path) -> Iterator[tuple[Path, Body]]:
    """Yield the objects in the files of a folder, apart from what is for kustomize, kvpicker and Envoy."""
    for path in sorted(folder.rglob("*.yaml")):
        if path.name in {"kustomization.yaml", "kvpicker.yaml", "envoy.yaml", "prestop.yaml"}:
            continue
        for document in yaml.safe_load_all(path.read_text("utf-8")):
            yield path, json.loads(json.dumps(document))


def of(documents: list[Body], kind: str) -> list[Body]:
    """Return the objects of one kind."""
    return [each for each in documents if each["kind"] == kind]


def named(documents: list[Body], kind: str, name: str) -> Body:
    """Return one object."""
    (found,) = (each for each in of(documents, kind) if each["metadata"]["name"] == name)
    return found


def workloads(documents: list[Body]) -> list[Body]:
    """Return what runs pods."""
    return [each for each in documents if each["kind"] in {"Deployment", "StatefulSet"}]


def containers(workload: Body) -> list[Body]:
    """Return the containers of a workload, sidecars first."""
    pod = workload["spec"]["template"]["spec"]
    return [*pod.get("initContainers", ()), *pod["containers"]]


def is_endpoint_picker(name: str) -> bool:
    """Tell whether an overlay runs `kvpicker epp`."""
    return "components/endpoint-picker]" in (overlay(name) / "kustomization.yaml").read_text("utf-8")


def config_text(name: str, folder: Path) -> str:
    """Return an overlay's configuration of kvpicker with the paths of a pod led into `folder`, which is filled."""
    (folder / "token").write_text("secret")
    text = (overlay(name) / "kvpicker.yaml").read_text("utf-8")
    assert TOKEN_FILE in text
    return text.replace(TOKEN_FILE, str(folder / "token")).replace("/run/kvpicker", str(folder))
