"""The page on Kubernetes is true: its configuration is one, and its rights are those that are needed, no more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ext_proc.config import parse
from ext_proc.sources.kubernetes.reflector import _BY_CODE, _REASONS
from tests.kube.following import Following, following
from tests.kube.objects import endpoint, endpoint_slice, inference_pool, pod, service
from tests.kube.server import FakeApi, rights
from tests.waiting import until

PAGE = (Path(__file__).parents[2] / "deploy" / "kubernetes.md").read_text("utf-8")
EXAMPLE, MANIFESTS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def rules() -> list[dict[str, Any]]:
    """Read the rules of the role."""
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(MANIFESTS))
    found: list[dict[str, Any]] = documents[0]["rules"]
    return found


async def test_the_rights_are_those_that_are_used(tmp_path: Path, rules: list[dict[str, Any]]) -> None:
    """With the rights of the page, and no others, the example's pools are known; and none of the rights is idle."""
    api = FakeApi()
    api.allowed = rights(rules)
    api.put(inference_pool("vllm"), pod("a", "10.0.0.1"), service("embed", {"app": "embed"}))
    api.put(endpoint_slice("s", "embed", [endpoint("10.0.0.2", "u", ready=True)]))
    example = EXAMPLE.replace("port: http}", "port: http, labels: {gpu: nvidia.com/gpu.product}}")
    assert example != EXAMPLE
    async with api.serving() as url, following(Following(url, tmp_path), example) as made:
        await until(
            lambda: made.addresses("chat") == {"10.0.0.1:8000"} and made.addresses("embed") == {"10.0.0.2:8000"}
        )
        await until(lambda: {(verb, resource) for verb, resource, _ in api.asked} == api.allowed)
        assert made.failures() == []
    names = {name for rule in rules for name in rule.get("resourceNames", ())}
    asked = {query["fieldSelector"] for _, _, query in api.asked if "fieldSelector" in query}
    assert asked == {f"metadata.name={name}" for name in names}


def test_the_example_is_a_configuration() -> None:
    """What the page shows can be copied."""
    assert list(parse(EXAMPLE).pools) == ["chat", "embed"]


def test_every_reason_is_explained() -> None:
    """No reason in the log is missing from the page."""
    for reason in {*_BY_CODE.values(), *(reason for _, reason in _REASONS), "failed"}:
        assert f"`{reason}`" in PAGE
