"""An Envoy with the settings that Envoy Gateway makes of the policies that kvpicker renders for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ext_proc.core.model import Ending
from ext_proc.core.names import DESTINATION
from ext_proc.manifests import ManifestOptions, to_yaml
from tests.waiting import until
from tests.wire.duplex.conftest import running
from tests.wire.duplex.gateways import TYPES, envoy_gateway, logged
from tests.wire.duplex.raw import Ask

pytestmark = pytest.mark.envoy

OVERRIDE_HOST = "envoy: {data_plane: override-host}"
MODES = {"BufferedPartial": "BUFFERED_PARTIAL"}


def policies() -> dict[str, dict[str, Any]]:
    """Return the specs of the rendered objects by kind."""
    return {each["kind"]: each["spec"] for each in yaml.safe_load_all(to_yaml("envoy-gateway", ManifestOptions()))}


def translated(processor: str, engines: Any) -> dict[str, Any]:
    """Make of the policies what Envoy Gateway makes of them."""
    made = policies()
    (extension,) = made["EnvoyExtensionPolicy"]["extProc"]
    config = logged(envoy_gateway(processor, engines, request=MODES[extension["processingMode"]["request"]["body"]]))
    (up,) = (each for each in config["static_resources"]["clusters"] if each["name"] == "up")
    (policy,) = up["load_balancing_policy"]["policies"]
    balancing = made["BackendTrafficPolicy"]["loadBalancer"]["endpointOverride"]["extractFrom"]
    override = policy["typed_extension_config"]["typed_config"]
    override["override_host_sources"] = [{"header": each["header"]} for each in balancing]
    del override["selected_host_key"]
    removed = made["ClientTrafficPolicy"]["headers"]["earlyRequestHeaders"]["remove"]
    early = {
        "@type": f"{TYPES}.http.early_header_mutation.header_mutation.v3.HeaderMutation",
        "mutations": [{"remove": name} for name in removed],
    }
    for listener in config["static_resources"]["listeners"][:2]:
        listener["per_connection_buffer_limit_bytes"] = 4 * 1024 * 1024
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        manager["early_header_mutation_extensions"] = [
            {"name": "envoy.http.early_header_mutation.header_mutation", "typed_config": early}
        ]
        filter_ = manager["http_filters"][0]["typed_config"]
        filter_["message_timeout"] = extension["messageTimeout"]
        filter_["failure_mode_allow"] = extension["failOpen"]
        filter_["metadata_options"]["receiving_namespaces"]["untyped"] = extension["metadata"]["writableNamespaces"]
    return config


async def test_requests_go_where_kvpicker_says(tmp_path: Path, chat: bytes) -> None:
    """By the header that it sets, whatever clients write there; and by the access log it learns what became of them."""
    async with running(tmp_path, translated, extra=OVERRIDE_HOST) as stack:
        elsewhere = stack.engines[0].address
        for number in range(12):
            body = chat if number % 2 else chat.replace(b"rivers", b"r" * 1_000_000)
            lines = (f"{DESTINATION}: {elsewhere}",) if number % 3 else ()
            answer = await stack.ask(Ask(str(number), body=body, headers=lines))
            assert answer is not None
            assert answer.status == 200
        await until(lambda: len(stack.outcomes) == 12)
        assert {outcome.ending for outcome in stack.outcomes} == {Ending.OK}
        served = {outcome.served for outcome in stack.outcomes}
        assert served == {engine.address for engine in stack.engines}
        for number in range(12):
            got = stack.got(str(number))
            first = got.headers[DESTINATION].split(",")[0]
            (engine,) = (engine for engine in stack.engines if str(number) in engine.got)
            assert engine.address == first


async def test_without_kvpicker_envoy_chooses(tmp_path: Path, chat: bytes) -> None:
    """The policy fails open, and not even then do clients choose."""

    def unreachable(_processor: str, engines: Any) -> dict[str, Any]:
        return translated("127.0.0.1:1", engines)

    async with running(tmp_path, unreachable, extra=OVERRIDE_HOST) as stack:
        stack.violations = _none  # type: ignore[method-assign]  # that streams fail is the point
        line = f"{DESTINATION}: {stack.engines[0].address}"
        for number in range(4):
            answer = await stack.ask(Ask(str(number), body=chat, headers=(line,)))
            assert answer is not None
            assert answer.status == 200
        assert all(engine.got for engine in stack.engines)
        assert all(DESTINATION not in stack.got(str(number)).headers for number in range(4))


async def _none() -> dict[str, int]:
    return {}
