"""The objects that `kvpicker envoy-config` renders for gateways."""

from __future__ import annotations

import copy
import math
from typing import Any, get_args

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ext_proc.core.errors import ConfigError
from ext_proc.core.names import DESTINATION, SERVED, SUBSET
from ext_proc.manifests import PROFILES, ManifestOptions, to_yaml
from ext_proc.manifests.options import Profile
from tests.kube.schemas import problems

MODELS = ("acme/chat-8b", "acme/chat-70b")
PRINTABLE = st.characters(codec="utf-8", exclude_categories=["C"])
NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)


def objects(profile: Profile, **options: Any) -> dict[str, dict[str, Any]]:
    """Render a profile; the objects by kind, of several the last."""
    if profile == "envoy-ai-gateway":
        options.setdefault("models", MODELS)
    return {each["kind"]: each for each in yaml.safe_load_all(to_yaml(profile, ManifestOptions(**options)))}


def test_profiles_are_those_of_the_type() -> None:
    """No profile is declared without being offered."""
    assert get_args(Profile) == PROFILES


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("mode", ["open", "closed"])
def test_what_is_rendered_is_taken(profile: Profile, mode: str) -> None:
    """An API server takes every object, and each stands under a comment."""
    text = to_yaml(profile, ManifestOptions(models=MODELS, failure_mode=mode))  # type: ignore[arg-type]
    documents = text.split("---\n")[1:]
    assert documents
    for document in documents:
        assert document.startswith("# ")
        assert problems(yaml.safe_load(document)) == []
    assert max(map(len, text.splitlines())) <= 120


@given(
    profile=st.sampled_from(PROFILES),
    namespace=NAMES,
    pool=NAMES,
    picker=NAMES,
    port=st.integers(1, 65535),
    replicas=st.integers(1, 9),
    timeout=st.floats(0.001, 3_600),
    limit=st.integers(1, 2**30),
    models=st.lists(st.text(PRINTABLE, min_size=1), min_size=1, max_size=3),
)
@settings(max_examples=10, phases=[Phase.explicit, Phase.generate])  # shrinking objects this large takes minutes
def test_any_options_are_taken(
    profile: Profile,
    namespace: str,
    pool: str,
    picker: str,
    port: int,
    replicas: int,
    timeout: float,
    limit: int,
    models: list[str],
) -> None:
    """Whatever may be chosen, the objects are whole, lie in one namespace and survive YAML."""
    options = ManifestOptions(
        namespace=namespace,
        pool=pool,
        picker=picker,
        picker_port=port,
        replicas=replicas,
        message_timeout=timeout,
        body_limit=limit,
        models=tuple(models),
    )
    for document in yaml.safe_load_all(to_yaml(profile, options)):
        if document["apiVersion"] != "v1":
            assert problems(document) == []
        assert document["metadata"]["namespace"] == namespace


def test_a_wrong_field_is_noticed() -> None:
    """The schemas are no formality: a misspelt field, a wrong type and a forbidden pair are found."""
    policy = objects("envoy-gateway")["EnvoyExtensionPolicy"]
    assert problems(policy) == []
    for change in (
        lambda spec: spec["extProc"][0].update(failopen=True),
        lambda spec: spec["extProc"][0].update(messageTimeout=2),
        lambda spec: spec["extProc"][0]["processingMode"]["request"].update(body="FullDuplexStreamed"),
        lambda spec: spec["extProc"][0]["metadata"].update(writableNamespaces=["envoy.filters.http.lua"]),
    ):
        broken = copy.deepcopy(policy)
        change(broken["spec"])
        assert problems(broken)
    service = objects("envoy-gateway")["Service"]
    assert problems(service) == []
    service["spec"]["port"] = 9002
    assert problems(service)


@pytest.mark.parametrize("profile", [each for each in PROFILES if each != "envoy-gateway"])
def test_the_pool_names_the_picker(profile: Profile) -> None:
    """Route, pool and picker belong together, by the names that were chosen."""
    made = objects(profile, pool="engines", picker="chooser", selector=("a=b", "c/d=e"), target_ports=(8000, 8001))
    pool = made["InferencePool"]
    assert pool["metadata"]["name"] == "engines"
    assert pool["spec"]["selector"] == {"matchLabels": {"a": "b", "c/d": "e"}}
    assert pool["spec"]["targetPorts"] == [{"number": 8000}, {"number": 8001}]
    assert pool["spec"]["endpointPickerRef"]["name"] == "chooser"
    route = made.get("HTTPRoute") or made["AIGatewayRoute"]
    backend = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "engines"}
    assert route["spec"]["rules"][0]["backendRefs"] == [backend]
    assert route["spec"]["parentRefs"][0]["name"] == made["Gateway"]["metadata"]["name"]


def test_only_istio_may_fail_open() -> None:
    """A gateway that obeys a header must not go on without the one who overwrites what clients write there."""
    for profile, mode in (("istio", "FailOpen"), ("envoy-ai-gateway", "FailClose"), ("kgateway", "FailClose")):
        made = objects(profile, failure_mode="open")  # type: ignore[arg-type]
        assert made["InferencePool"]["spec"]["endpointPickerRef"]["failureMode"] == mode
    assert (
        objects("istio", failure_mode="closed")["InferencePool"]["spec"]["endpointPickerRef"]["failureMode"]
        == "FailClose"
    )


def test_istio_speaks_tls_to_the_picker() -> None:
    """The rule is about the Service that the pool names."""
    rule = objects("istio", namespace="ns", picker="chooser")["DestinationRule"]["spec"]
    assert rule["host"] == "chooser.ns.svc.cluster.local"
    assert rule["trafficPolicy"]["tls"] == {"mode": "SIMPLE", "insecureSkipVerify": True}


VERIFIED = {"tls_ca": "picker-ca", "tls_name": "kvpicker.ns.svc"}


def test_istio_verifies_whom_it_speaks_to() -> None:
    """By authority and name; with a certificate of its own both sides do."""
    rule = objects("istio", **VERIFIED)["DestinationRule"]
    assert problems(rule) == []
    names = {"sni": "kvpicker.ns.svc", "subjectAltNames": ["kvpicker.ns.svc"]}
    assert rule["spec"]["trafficPolicy"]["tls"] == {"mode": "SIMPLE", "credentialName": "picker-ca", **names}
    mutual = objects("istio", tls_ca="gw", tls_name="kvpicker.ns.svc", tls_client="gw")["DestinationRule"]
    assert problems(mutual) == []
    assert mutual["spec"]["trafficPolicy"]["tls"] == {"mode": "MUTUAL", "credentialName": "gw", **names}


def test_envoy_gateway_verifies_whom_it_speaks_to() -> None:
    """The policy holds for the Service of exchanges and for that of each log; none of them is plain HTTP/2 then."""
    text = to_yaml("envoy-gateway", ManifestOptions(**VERIFIED, tls_client="gw"))  # type: ignore[arg-type]
    documents = list(yaml.safe_load_all(text))
    assert [each for each in documents if each["apiVersion"] != "v1" and problems(each)] == []
    made = {each["kind"]: each["spec"] for each in documents}
    policy = made["BackendTLSPolicy"]
    assert [each["name"] for each in policy["targetRefs"]] == ["kvpicker", "kvpicker-0", "kvpicker-1"]
    assert policy["validation"]["hostname"] == "kvpicker.ns.svc"
    assert made["EnvoyProxy"]["backendTLS"]["clientCertificateRef"]["name"] == "gw"
    assert "appProtocol" not in made["Service"]["ports"][0]
    assert "BackendTLSPolicy" not in objects("envoy-gateway")


def test_envoy_gateway_goes_where_kvpicker_says() -> None:
    """It obeys the header that kvpicker sets, and takes it and its kin away from clients before."""
    made = objects("envoy-gateway")
    balancing = made["BackendTrafficPolicy"]["spec"]["loadBalancer"]
    assert balancing["endpointOverride"]["extractFrom"] == [{"header": DESTINATION}]
    removed = made["ClientTrafficPolicy"]["spec"]["headers"]["earlyRequestHeaders"]["remove"]
    assert {DESTINATION, SUBSET, SERVED} <= set(removed)


def test_every_replica_gets_the_access_log() -> None:
    """Each kvpicker process has a Service of its own, and each is a sink."""
    text = to_yaml("envoy-gateway", ManifestOptions(replicas=3, picker="chooser"))
    documents = list(yaml.safe_load_all(text))
    services = {each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "Service"}
    assert list(services) == ["chooser-0", "chooser-1", "chooser-2"]
    assert all(spec["selector"] == {"statefulset.kubernetes.io/pod-name": name} for name, spec in services.items())
    proxy = next(each for each in documents if each["kind"] == "EnvoyProxy")
    (setting,) = proxy["spec"]["telemetry"]["accessLog"]["settings"]
    assert [sink["als"]["backendRefs"][0]["name"] for sink in setting["sinks"]] == list(services)


def test_the_model_is_routed() -> None:
    """Envoy AI Gateway sends exactly the models that were named."""
    (rule,) = objects("envoy-ai-gateway")["AIGatewayRoute"]["spec"]["rules"]
    assert [match["headers"][0]["value"] for match in rule["matches"]] == list(MODELS)


REFUSED: dict[str, tuple[Profile, dict[str, Any], str]] = {
    "namespace": ("istio", {"namespace": "Default"}, "namespace: 'Default' is no name of an object"),
    "label": ("istio", {"selector": ("vllm",)}, "selector: 'vllm' is no label; write key=value"),
    "no label": ("istio", {"selector": ()}, "selector: name at least one label"),
    "port": ("istio", {"target_ports": (0,)}, "target_port: 0 is no port"),
    "same port": ("istio", {"target_ports": (1, 1)}, "target_port: one to eight different ports"),
    "nine ports": ("istio", {"target_ports": tuple(range(1, 10))}, "target_port: one to eight different ports"),
    "two ports": ("envoy-gateway", {"target_ports": (1, 2)}, "target_port: one port of the engines' Service"),
    "replicas": ("envoy-gateway", {"replicas": 0}, "replicas: 1 to 9 are possible, not 0"),
    "timeout": ("envoy-gateway", {"message_timeout": 0.0}, "message_timeout: 0 is not between 0.001 and 3600"),
    "no time": ("envoy-gateway", {"message_timeout": math.nan}, "message_timeout: nan is not between"),
    "retries": ("envoy-gateway", {"retries": -1}, "retries: -1 is not between 0 and 100"),
    "no body": ("envoy-gateway", {"body_limit": 0}, "body_limit: 0 is not between 1 and 1073741824"),
    "no name": ("istio", {"tls_ca": "ca"}, "tls_name: missing; write the name that kvpicker's certificate is for"),
    "no authority": ("istio", {"tls_client": "x"}, "tls_client: nothing is verified; name the authority by `tls_ca`"),
    "a path": ("istio", {"tls_ca": "/etc/ca.crt", "tls_name": "x"}, "tls_ca: '/etc/ca.crt' is no name of an object"),
    "apart": (
        "istio",
        {"tls_ca": "ca", "tls_name": "x", "tls_client": "gw"},
        "tls_ca: Istio looks for the authority in the client's Secret or in gw-cacert; name either",
    ),
    "no model": ("envoy-ai-gateway", {}, "model: missing; Envoy AI Gateway routes by model"),
    "empty model": ("envoy-ai-gateway", {"models": ("",)}, "model: at most 16 models, none of them empty"),
}


@pytest.mark.parametrize(("profile", "options", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(profile: Profile, options: dict[str, Any], message: str) -> None:
    """An option that no API server would take is refused by its name."""
    with pytest.raises(ConfigError) as caught:
        to_yaml(profile, ManifestOptions(**options))
    assert str(caught.value).startswith(message)
