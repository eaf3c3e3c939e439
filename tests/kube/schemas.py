"""Whether an API server would take an object: Kubernetes' own by their published schemas, those of gateways by ours."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft202012Validator

VERSION = "1.30"
"""The oldest Kubernetes that all our objects are for: preStop hooks that sleep."""

_OURS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("schemas.yaml").read_text("utf-8"))
_BUILT_IN = (
    "v1",
    "apps/v1",
    "networking.k8s.io/v1",
    "policy/v1",
    "rbac.authorization.k8s.io/v1",
)


def problems(document: dict[str, Any]) -> list[str]:
    """Say what is wrong with an object; an unknown kind or field is wrong."""
    return _problems(json.dumps(document, sort_keys=True))


@functools.cache
def _problems(text: str) -> list[str]:
    document = json.loads(text)
    if document["apiVersion"] in _BUILT_IN:
        try:
            kubernetes_validate.validate(document, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            return [f"{'.'.join(map(str, error.path))}: {error.message}"]
        return []
    return list(_by_ours(document))


def _by_ours(document: dict[str, Any]) -> Iterator[str]:
    kind = f"{document['apiVersion']}/{document['kind']}"
    if kind not in _OURS["kinds"]:
        yield f"{kind}: no schema"
        return
    schema = {
        "$defs": _OURS["$defs"],
        "type": "object",
        "additionalProperties": False,
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"$ref": "#/$defs/metadata"},
            "spec": _OURS["kinds"][kind],
        },
    }
    for error in Draft202012Validator(schema).iter_errors(document):
        yield f"{'.'.join(map(str, error.path))}: {error.message}"
