"""Names on the wire between Envoy and kvpicker: services, headers, metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXT_PROC_SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
ACCESS_LOG_SERVICE: Final = "envoy.service.accesslog.v3.AccessLogService"

DESTINATION: Final = "x-gateway-destination-endpoint"
"""The pick, as header and as metadata key (Endpoint Picker protocol v1)."""

SUBSET: Final = "x-gateway-destination-endpoint-subset"
SERVED: Final = "x-gateway-destination-endpoint-served"

RANK: Final = "x-data-parallel-rank"
"""The data-parallel rank that is to answer, as vLLM and SGLang read it."""

OVERRIDES: Final = "x-override-"
"""How headers begin that alter a request inside SGLang, if it runs with SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES."""

ENGINE_ORDERS: Final = (
    *(OVERRIDES + name for name in (
        "rid", "priority", "conversation-id", "routed-dp-rank", "disagg-prefill-dp-rank",
        "bootstrap-host", "bootstrap-port", "bootstrap-room",
    )),
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-kv-cache-source-host-port",
    "x-data-parallel-host-port",
    "x-llm-d-prefiller-host-port",
    "x-llm-d-encoder-hosts-ports",
    "x-llm-d-kv-cache-source-host-port",
)  # fmt: skip
"""Headers by which engines, and the sidecars of llm-d, are told what only a router should say: whom to fetch a prompt's
cache from, which rank, how urgent it is, what its name is. From a client they are requests to any address."""

PICKER_HEADERS: Final = (DESTINATION, SUBSET, SERVED, RANK)
"""Headers that a client must not set."""

SESSION: Final = "x-kvpicker-session"
"""A name for the conversation that the gateway gives, from a cookie or whatever it likes; a client cannot set it."""

SESSION_HEADERS: Final = (
    SESSION,
    "x-claude-code-session-id",
    "x-session-id",
    "session-id",
    "session_id",
    "x-session-affinity",
)
"""Headers that name a conversation, the gateway's before the clients' own; the first that is there counts."""

FAIRNESS_ID: Final = "x-llm-d-inference-fairness-id"
OBJECTIVE: Final = "x-llm-d-inference-objective"
MODEL_REWRITE: Final = "x-llm-d-model-name-rewrite"
TTFT_TARGET: Final = "x-llm-d-slo-ttft-ms"
TPOT_TARGET: Final = "x-llm-d-slo-tpot-ms"

LEGACY_NAMES: Final[Mapping[str, str]] = {
    FAIRNESS_ID: "x-gateway-inference-fairness-id",
    OBJECTIVE: "x-gateway-inference-objective",
    MODEL_REWRITE: "x-gateway-model-name-rewrite",
    TTFT_TARGET: "x-slo-ttft-ms",
    TPOT_TARGET: "x-slo-tpot-ms",
}
"""What gateways called these headers before, and many still do."""

GATEWAY_HEADERS: Final = (*LEGACY_NAMES, *LEGACY_NAMES.values())
"""All that a gateway may say of a request in headers of the Endpoint Picker protocol."""

REQUEST_ID: Final = "x-request-id"

EXPLAIN: Final = "x-kvpicker-explain"
"""A client asks for an explanation of its request by the value `1`."""

EXPLAIN_PASSED: Final = "x-gateway-explain"
"""The same as the gateway passes it on, since it takes away what begins with x-kvpicker-."""

ASKER: Final = f"request.headers['{EXPLAIN_PASSED}'] == '1' ? source.address : ''"
"""Attribute (a CEL expression) by which the gateway names the client that asks; absent if none does.

Unlike a header it cannot be written by a client, whatever the gateway strips.
"""

DROPPED_HEADER: Final = "x-llm-d-request-dropped-reason"
"""Response header that says why a request was dropped, in the words that gateways of the protocol know."""

DECISION_HEADER: Final = "x-kvpicker-decision"
EXPLANATION_HEADER: Final = "x-kvpicker-explanation"
"""Response headers that the gateway makes of our metadata."""

READ_HEADERS: Final = (
    ":method",
    ":path",
    "content-type",
    "content-encoding",
    REQUEST_ID,
    *SESSION_HEADERS,
    *PICKER_HEADERS,
)
"""All that kvpicker reads of a request's headers; the others, credentials among them, need not be sent to it."""

FORWARDED: Final = "x-envoy-upstream-service-time"
"""Header that Envoy puts on the answers of engines, not on its own."""

ANSWER_HEADERS: Final = frozenset({":status", "content-type", "content-encoding", FORWARDED})
"""All that kvpicker reads of an answer's headers, where it sees answers."""

UPGRADE_HEADERS: Final = ("upgrade", ":protocol")
"""Headers of a client that wants to speak another protocol; a data plane need not send them."""

LB_NAMESPACE: Final = "envoy.lb"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
KVPICKER_NAMESPACE: Final = "kvpicker"
USAGE_NAMESPACE: Final = "kvpicker.usage"
"""Where the gateway's usage filter puts what it read from an answer."""

USAGE_WORDS_KEY: Final = "words"
"""One text of `key=value` words; filters that cannot write it may use the words as keys instead."""

DECISION_KEY: Final = "decision"
REFUSED_KEY: Final = "refused"

SHOWN_KEY: Final = "shown"
"""The decision once more, if the client may see it."""

EXPLANATION_KEY: Final = "explanation"
