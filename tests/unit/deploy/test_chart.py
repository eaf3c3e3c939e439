"""The Helm chart: rendered by our own reader of the templates it uses, not by Helm."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from ext_proc.cli import main
from tests.kube.schemas import problems
from tests.unit.deploy.go_template import render
from tests.unit.deploy.overlays import KUSTOMIZE, ROOT, Body, config_text, named, overlay

CHART = ROOT / "deploy" / "helm" / "kvpicker"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text("utf-8"))
TEMPLATES = sorted((CHART / "templates").glob("*.yaml"))
INSTANCE = "app.kubernetes.io/instance"

SERVICE = {
    "mode": "service",
    "config": (overlay("envoy-gateway") / "kvpicker.yaml").read_text("utf-8"),
    "follow": {"endpointSlices": True},
    "networkPolicy": VALUES["networkPolicy"] | {"metrics": []},
}


def data(**values: Any) -> dict[str, Any]:
    """Return what Helm gives templates."""
    merged = copy.deepcopy(VALUES)
    for name, value in values.items():
        merged[name] = merged[name] | value if isinstance(value, dict) else value
    if "follow" in values:
        merged["follow"] = {"inferencePool": "", "endpointSlices": False} | values["follow"]
    return {"Values": merged, "Release": {"Name": "kvpicker", "Namespace": "inference"}}


def rendered(**values: Any) -> list[Body]:
    """Render all objects."""
    return [
        document
        for path in TEMPLATES
        for document in yaml.safe_load_all(render(path.read_text("utf-8"), data(**values)))
    ]


def without_instance(document: Body) -> Body:
    """Leave out the label that tells releases of a chart apart."""
    text = re.sub(rf'"{INSTANCE}": "kvpicker"', '"": ""', json.dumps(document))
    found: Body = json.loads(text.replace(', "": ""', ""))
    return found


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{{ if .a }}x", "does not end"),
        ("{{ .b }}", "there is no b"),
        ("{{ .a | trunc 3 }}", "no function 'trunc' here"),
        ('{{ include "x" . }}', "no value"),
        ("{{.a}}", "no blanks around it"),
        ("{{ .m }}", "is no text"),
    ],
)
def test_what_is_not_known_is_an_error(template: str, complaint: str) -> None:
    """The reader guesses nothing."""
    with pytest.raises(ValueError, match=complaint):
        render(template, {"a": "1", "m": {}})


def test_white_space_and_blocks() -> None:
    """The reader trims, chooses and indents as Go's templates do."""
    given = {"a": "1", "b": "", "l": [{"x": 1}, {"y": 2}]}
    assert render("p\n{{- if .a }}\n  {{ .a }}\n{{- else }}\n  no\n{{- end }}\nq", given) == "p\n  1\nq"
    assert render("{{- if .b }}yes{{- else }}no{{- end }}", given) == "no"
    assert render('{{ if eq .a "1" }}yes{{ end }}', given) == "yes"
    assert render("l:\n  {{- .l | toYaml | nindent 2 }}", given) == "l:\n  - x: 1\n  - y: 2"
    assert render("{{ .a -}}   \n x", given) == "1x"


@pytest.mark.parametrize("values", [{}, SERVICE], ids=["endpoint-picker", "service"])
def test_everything_is_taken(values: dict[str, Any]) -> None:
    """An API server takes each object, in both modes."""
    for document in rendered(**values):
        assert problems(document) == [], document["kind"]


def test_the_chart_is_the_overlay() -> None:
    """With its own values the chart makes what the overlay for Istio makes, as far as kvpicker itself goes."""
    made = [without_instance(each) for each in rendered()]
    base = {
        (each["kind"], each["metadata"]["name"]): each
        for path in (*(KUSTOMIZE / "base").glob("*.yaml"), KUSTOMIZE / "components/follow-inference-pool/rbac.yaml")
        if path.name != "kustomization.yaml"
        for each in yaml.safe_load_all(path.read_text("utf-8"))
    }
    for kind, name in (("PodDisruptionBudget", "kvpicker"), ("Service", "kvpicker"), ("Service", "kvpicker-pods")):
        expected = base[kind, name]["spec"]
        for port in expected.get("ports", ()):
            if "appProtocol" in port:  # patched by the overlay
                port["appProtocol"] = "http2"
        assert named(made, kind, name)["spec"] == expected
    assert named(made, "Role", "kvpicker")["rules"] == base["Role", "kvpicker"]["rules"]
    assert (
        named(made, "NetworkPolicy", "kvpicker")["spec"]["egress"]
        == base["NetworkPolicy", "kvpicker"]["spec"]["egress"]
    )
    chart, kustomize = named(made, "StatefulSet", "kvpicker")["spec"], base["StatefulSet", "kvpicker"]["spec"]
    ours, theirs = (spec["template"]["spec"]["containers"][0] for spec in (chart, kustomize))
    for word in ("args", "ports", "livenessProbe", "image", "imagePullPolicy"):  # patched by the overlay
        ours.pop(word)
        theirs.pop(word, None)
    assert chart == kustomize


def test_the_modes_differ_in_what_listens() -> None:
    """The picker of an InferencePool answers probes on a port without TLS; a plain service on its own."""
    for values, words, probe, ports in (
        ({}, ["epp", "--config"], 9003, {9002, 9003, 9090}),
        (SERVICE, ["serve"], 9002, {9002, 9090}),
    ):
        spec = named(rendered(**values), "StatefulSet", "kvpicker")["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert container["args"] == [*words, "/etc/kvpicker/kvpicker.yaml"]
        assert container["livenessProbe"]["grpc"]["port"] == probe
        assert {port["containerPort"] for port in container["ports"]} == ports


def test_rights_are_those_asked_for() -> None:
    """A pool of a Service gives no rights on pods, and the other way round."""
    rules = named(rendered(**SERVICE), "Role", "kvpicker")["rules"]
    assert (
        rules
        == yaml.safe_load((KUSTOMIZE / "components/follow-service/rbac.yaml").read_text("utf-8").split("---")[0])[
            "rules"
        ]
    )


def test_the_configuration_is_one(tmp_path: Path) -> None:
    """`kvpicker epp --check` is content with the chart's own configuration, which is that of the overlay for Istio."""
    text = named(rendered(), "ConfigMap", "kvpicker")["data"]["kvpicker.yaml"]
    assert text == VALUES["config"]
    expected = config_text("istio", tmp_path)
    path = tmp_path / "kvpicker.yaml"
    path.write_text(text.replace("/etc/kvpicker-admin", str(tmp_path)))
    assert yaml.safe_load(path.read_text("utf-8")) == yaml.safe_load(expected)
    assert main(["epp", "--check", "--config", str(path)]) == 0


def test_values_have_a_schema() -> None:
    """The chart's own values fit it, and it is a good schema."""
    Draft7Validator.check_schema(SCHEMA)
    assert list(Draft7Validator(SCHEMA).iter_errors(VALUES)) == []
    assert list(Draft7Validator(SCHEMA).iter_errors(data(**SERVICE)["Values"])) == []


@pytest.mark.parametrize(
    "values",
    [
        {"mode": "both"},
        {"replicas": 0},
        {"image": {"tag": "latest"}},
        {"config": ""},
        {"replica": 1},
        {"engineLabels": []},
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    """Helm refuses what the chart could not use, and misspelt names."""
    merged = copy.deepcopy(VALUES)
    for name, value in values.items():
        merged[name] = merged.get(name, {}) | value if isinstance(value, dict) else value
    assert list(Draft7Validator(SCHEMA).iter_errors(merged))


def test_every_value_is_used() -> None:
    """No value is without effect."""
    text = "".join(path.read_text("utf-8") for path in TEMPLATES)
    used = set(re.findall(r"\.Values\.([\w.]+)", text))
    for name, value in VALUES.items():
        below = {f"{name}.{key}" for key in value} if isinstance(value, dict) else {name}
        assert name in used or below <= used, name


def test_notes_can_be_rendered() -> None:
    """What Helm prints at the end names the release."""
    text = render((CHART / "templates" / "NOTES.txt").read_text("utf-8"), data())
    assert "kubectl -n inference exec kvpicker-0 -- kvpicker endpoints" in text


def test_versions_agree() -> None:
    """Chart, image and package are of one version."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert version is not None
    assert chart["version"] == chart["appVersion"] == VALUES["image"]["tag"] == version[1]
    for path in (KUSTOMIZE / "base", overlay("sidecar")):
        (image,) = yaml.safe_load((path / "kustomization.yaml").read_text("utf-8"))["images"]
        assert image == {"name": "kvpicker", "newName": VALUES["image"]["repository"], "newTag": version[1]}
