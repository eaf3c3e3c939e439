"""The nouns of kvpicker: endpoints, requests, decisions and outcomes."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from ext_proc.core.caps import NO_CAPS, Caps

BlockHash: TypeAlias = int
"""One link of a prompt's hash chain (xxh3_64): equal links mean equal prompts up to and including that block."""

NO_LABELS: Mapping[str, str] = {}

NO_SCORES: Mapping[str, float] = {}


class Api(enum.StrEnum):
    """The API a client speaks; it decides the shape of the errors it gets."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class Operation(enum.StrEnum):
    """What a path asks an engine to do."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSE = "response"
    MESSAGE = "message"
    GENERATE = "generate"
    EMBEDDING = "embedding"
    SCORE = "score"
    COUNT_TOKENS = "count_tokens"
    MEDIA = "media"
    LOOKUP = "lookup"


GENERATING = frozenset(
    {Operation.CHAT, Operation.COMPLETION, Operation.RESPONSE, Operation.MESSAGE, Operation.GENERATE}
)
"""Operations whose answer is generated token by token, and whose prompt stays in the KV cache."""

NEARLY_FREE = frozenset({Operation.LOOKUP, Operation.COUNT_TOKENS})
"""Operations that cost an engine next to nothing and therefore claim nothing in the ledger."""


class Unhashed(enum.StrEnum):
    """Why a request neither reads nor writes prefix memory."""

    NOT_GENERATION = "not_generation"
    NO_BODY = "no_body"
    NO_PROMPT = "no_prompt"
    ODD_MODEL = "odd_model"
    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    TOO_DEEP = "too_deep"
    ENCODING_UNKNOWN = "encoding_unknown"
    ENCODING_BROKEN = "encoding_broken"


class MetricsSource(msgspec.Struct, frozen=True, gc=False):
    """How the metrics of an engine are read, and its KV events; None where nobody said.

    Attributes:
        engine: the engine whose names they have.
        path: path of the page.
        port: port of the page, at the endpoint's own address.
        events_port: port of the publisher of its KV events.
        replay_port: port where events can be asked for again.
    """

    engine: str | None = None
    path: str | None = None
    port: int | None = None
    events_port: int | None = None
    replay_port: int | None = None


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One routable engine: an ip:port that Envoy can be told to use.

    Attributes:
        address: `ip:port`, IPv6 in brackets, in canonical notation.
        pool: the pool it belongs to.
        models: the models it serves; empty while they are neither declared nor learnt, and then it may serve any.
        slot: a small integer of its own, never shared by two endpoints of one snapshot.
        generation: grows when the same address comes back as something else, so that no state is inherited.
        kv_tokens: capacity of its KV cache in tokens; None where unknown.
        prefill_rate: configured prefill speed in tokens per second; None takes the strategy's default.
        labels: what filters and people may want to know of it.
        metrics: how its metrics are read, as far as that was said of this endpoint.
        caps: what it may hold at most, as far as that was said of this endpoint.
        name: the `name:port` that it is listed by and was found under; empty where it is listed by its address.
    """

    address: str
    pool: str
    models: frozenset[str] = frozenset()
    slot: int
    generation: int = 0
    kv_tokens: int | None = None
    prefill_rate: float | None = None
    labels: Mapping[str, str] = NO_LABELS
    metrics: MetricsSource = MetricsSource()
    caps: Caps = NO_CAPS
    name: str = ""


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What kvpicker understood of one HTTP request.

    Attributes:
        operation: what the path asks for.
        api: the API whose error shape the client expects.
        model: the body's `model` (the last one where it stands twice); None if absent or not a string.
        prompt: the canonical prompt, the bytes that the hash chain is built over; empty if there is nothing to hash.
        prompt_tokens: estimated tokens of all prompts of the request.
        output_tokens: the client's limit on generated tokens; None if it sets none.
        namespace: parts beside the model that separate KV caches, such as `cache_salt`.
        unhashed: why `prompt` must not be used; None if it may.
        truncated: True if only the beginning of the body was seen.
        stream: True if the client asked for a stream.
        previous_response: id of the response that this request continues (OpenAI Responses API).
        session: a name for the conversation, from a header or the body; empty if nobody gives one.
        request_id: the gateway's x-request-id; empty where it is not forwarded.
        waited: seconds that it waited here for a place at an endpoint, before the decision.
        ttft_target: seconds in which its first token is wanted; None for no matter when.
        tpot_target: seconds that each further token may take; None the same.
    """

    operation: Operation
    api: Api
    model: str | None = None
    prompt: bytes = b""
    prompt_tokens: int = 0
    output_tokens: int | None = None
    namespace: tuple[str, ...] = ()
    unhashed: Unhashed | None = None
    truncated: bool = False
    stream: bool = False
    previous_response: str | None = None
    session: str = ""
    request_id: str = ""
    waited: float = 0.0
    ttft_target: float | None = None
    tpot_target: float | None = None


class CostTerms(msgspec.Struct, frozen=True, gc=False):
    """Why an endpoint costs what it costs, in seconds except where said.

    Attributes:
        endpoint: the endpoint the terms belong to.
        cost: what the strategy compares; lowest wins.
        hit_tokens: prompt tokens the index believes the endpoint holds.
        queue: wait for the work in front (W).
        prefill: the request's own prefill (S).
        memory: wait for KV memory (K).
        in_flight: requests in flight at the endpoint when the decision was made (n), a count.
        interference: own prefill lengthened by the requests in flight.
        backlog: own prefill weighted up because every endpoint has a backlog.
        copying: what computing here what another endpoint holds costs others; below 0 where they will use it.
        filtered: True if the strategy itself filtered the endpoint out; the cost then only puts it last.
        in_seconds: True if the cost is in seconds too, the sum of the terms; else it is what the strategy counts.
        scores: what the cost is made of where that is no time, by name.
    """

    endpoint: Endpoint
    cost: float
    hit_tokens: int = 0
    queue: float = 0.0
    prefill: float = 0.0
    memory: float = 0.0
    in_flight: int = 0
    interference: float = 0.0
    backlog: float = 0.0
    copying: float = 0.0
    filtered: bool = False
    in_seconds: bool = False
    scores: Mapping[str, float] = NO_SCORES

    @property
    def wait(self) -> float:
        """Seconds until the first token, as predicted: queue, own prefill and memory (W + S + K)."""
        return self.queue + self.prefill + self.memory


class FilterReport(msgspec.Struct, frozen=True, gc=False):
    """How many endpoints there were before a filter and after it.

    Attributes:
        name: of the filter.
        before: how many there were.
        after: how many met it.
        left: which met it, where that is known.
        skipped: True if it was not obeyed, because it would have left none.
    """

    name: str
    before: int
    after: int
    left: Sequence[Endpoint] = ()
    skipped: bool = False

    def __str__(self) -> str:
        """Read as "model: 0 of 4 match"."""
        return f"{self.name}: {self.after} of {self.before} match{', so it is skipped' if self.skipped else ''}"


class IndexMode(enum.StrEnum):
    """How cached tokens were predicted: by the text in our own history, or by tokens in what the engine reports."""

    TEXT = "text"
    TOKEN = "token"  # noqa: S105  not that kind of token


class Prediction(msgspec.Struct, frozen=True, gc=False):
    """The cached tokens that were predicted for an endpoint, and how."""

    tokens: int
    mode: IndexMode


class Decision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which endpoint a request was given, and everything needed to explain it.

    Attributes:
        id: unique among all kvpickers that share an access log.
        endpoints: the chosen endpoint, then the fallbacks in order.
        request: what was decided on.
        chain_length: number of blocks of the prompt's hash chain.
        hit_tokens: predicted cached tokens at the chosen endpoint.
        fallback_hits: the same for each fallback.
        reason: one of the reason codes of the strategy.
        strategy: the strategy that ranked.
        terms: every candidate with its cost.
        filters: what each filter left.
        decided_at: monotonic seconds.
        inside: the strategy that this one left the choice to; empty if none.
        replaced: the strategy that failed, and in whose place this one ranked; empty if none failed.
        exact: for each of the endpoints, whether its cached tokens were looked up by the prompt's tokens in what its
            engine reports, not by text in our own history; empty if none was.
        rank: the data-parallel rank that is to answer; None leaves that to the engine.
    """

    id: str
    endpoints: tuple[Endpoint, ...]
    request: InferenceRequest
    chain_length: int
    hit_tokens: int
    reason: str
    strategy: str
    terms: Sequence[CostTerms]
    filters: tuple[FilterReport, ...]
    decided_at: float
    fallback_hits: tuple[int, ...] = ()
    inside: str = ""
    replaced: str = ""
    exact: tuple[bool, ...] = ()
    rank: int | None = None

    @property
    def chosen(self) -> Endpoint:
        """The endpoint that the request was given."""
        return self.endpoints[0]

    def prediction(self, address: str) -> Prediction | None:
        """Return what was predicted for an endpoint; None if it was not among those named."""
        if self.endpoints[0].address == address:  # as nearly always
            return Prediction(self.hit_tokens, IndexMode.TOKEN if self.exact and self.exact[0] else IndexMode.TEXT)
        for place, endpoint in enumerate(self.endpoints):
            if endpoint.address == address:
                hit = self.fallback_hits[place - 1 : place]
                exact = self.exact[place] if self.exact else False
                return Prediction(hit[0], IndexMode.TOKEN if exact else IndexMode.TEXT) if hit else None
        return None


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts that the engine reported; None where it reported none or nonsense."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class Ending(enum.StrEnum):
    """How an HTTP exchange ended, as far as the engine is concerned."""

    OK = "ok"
    CLIENT_ERROR = "client_error"
    CLIENT_GONE = "client_gone"
    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    CONNECT_FAILURE = "connect_failure"
    RESET = "reset"
    CUT = "cut"
    STREAM_ERROR = "stream_error"
    TIMEOUT = "timeout"
    LOCAL = "local"
    LOST = "lost"


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of a decision, read from Envoy's access log.

    Attributes:
        decision_id: joins it to the decision.
        ending: how it ended.
        status: HTTP status the client got; 0 if none.
        served: address of the endpoint of the last attempt; None if no engine was reached.
        attempts: how many endpoints Envoy tried.
        details: Envoy's response code details.
        duration: seconds from the request's first byte to the response's last.
        first_byte: seconds from the request sent upstream to the first response byte (headers); None if none came.
        first_token: seconds from the decision to the first token of a stream; None where Envoy does not show it.
        usage: what the engine said of tokens.
        response_id: id of the response object, for requests that continue it; empty if none.
        request_id: Envoy's x-request-id.
    """

    decision_id: str
    ending: Ending
    status: int = 0
    served: str | None = None
    attempts: int = 1
    details: str = ""
    duration: float = 0.0
    first_byte: float | None = None
    first_token: float | None = None
    usage: Usage = Usage()
    response_id: str = ""
    request_id: str = ""


ILLNESS = frozenset(
    {
        Ending.SERVER_ERROR,
        Ending.CONNECT_FAILURE,
        Ending.RESET,
        Ending.CUT,
        Ending.STREAM_ERROR,
        Ending.TIMEOUT,
    }
)
"""Endings that speak against the engine; a client's error, a busy engine and a lost log entry do not."""
