"""The settings of caps, bounded waiting, tenants and priorities."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from ext_proc.config.section import Section
from ext_proc.core.caps import Caps
from ext_proc.core.exchange_policy import HIGHEST_PRIORITY

HeaderName = Annotated[str, Meta(pattern=r"^[a-z0-9_-]{1,100}$")]
Priority = Annotated[int, Meta(ge=-HIGHEST_PRIORITY, le=HIGHEST_PRIORITY)]
WaitSeconds = Annotated[float, Meta(ge=0, le=3_600)]

CREDENTIAL_HEADERS = frozenset({"api-key", "authorization", "cookie", "proxy-authorization", "x-api-key"})

MARGIN_S = 1.0
"""Seconds that Envoy is asked to be patient beyond the longest wait, so that a late answer is not too late."""

USUAL_WAIT_S = 10.0
SHARE_OF_TIMEOUT = 0.8


class CapsConfig(Section, frozen=True, kw_only=True):
    """What an endpoint may hold at most. Beyond that requests wait here, where they can still go anywhere.

    Caps need to hear of the ends of requests, from Envoy's access log or from answers that pass in full duplex. While
    nothing is heard (`kvpicker_degraded{reason="access_log"}` is 1) they do not hold.

    Attributes:
        requests: Requests in flight. Unset is no cap. A little more than the engine runs at once (vLLM:
            `--max-num-seqs`) keeps it busy, and its own queue short.
        tokens: Prompt and expected output tokens in flight. Unset is no cap. About the engine's KV cache.
    """

    requests: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    tokens: Annotated[int, Meta(ge=1, le=10_000_000_000)] | None = None

    @property
    def caps(self) -> Caps:
        """The same for the core."""
        return Caps(self.requests, self.tokens)


class QueueConfig(Section, frozen=True, kw_only=True):
    """How requests wait when every endpoint that may serve them is at its cap (`caps`).

    Attributes:
        max_requests: Requests that wait at once, at most; further ones get 429. 0 lets none wait.
        max_bytes: Bytes that they hold here at once, at most: their prompts, and 4 KB each; in full duplex their bodies
            too.
        wait_s: Seconds that a request waits, at most; then it gets 429. Envoy must be that patient, see
            `envoy.max_message_timeout_s`. Unset takes 10, or what Envoy allows if that is less.
        scale_from_zero_s: Seconds that a request waits for the first ready endpoint of the pool, at most; then it gets
            503. For pools whose endpoints come when they are needed; they need `models` if there are other pools. Ready
            is who the cluster says is, or who is listed and answers probes. 0 does not wait.
        wake_s: Seconds that a request waits for a sleeping engine to be woken, at most; then it gets 503. While all
            that could serve it sleep, kvpicker sends `POST /wake_up` to one of them, unless its metrics say that it
            has discarded its weights (level 2). Where `scale_from_zero_s` is set too, that is how long it waits. 0
            wakes nobody, and such requests get 503 at once, unless `scale_from_zero_s` has them wait.
        max_promises: Refused requests that are remembered until they come back as Retry-After told them, at most. Then
            they go before new ones.
        max_tenants: Tenants remembered per row of waiting requests that have nobody waiting, at most.
    """

    max_requests: Annotated[int, Meta(ge=0, le=1_000_000)] = 1_000
    max_bytes: Annotated[int, Meta(ge=65_536, le=1_099_511_627_776)] = 256 * 1024 * 1024
    wait_s: WaitSeconds | None = None
    scale_from_zero_s: WaitSeconds = 0.0
    wake_s: WaitSeconds = 0.0
    max_promises: Annotated[int, Meta(ge=0, le=10_000_000)] = 20_000
    max_tenants: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000


class TenantsConfig(Section, frozen=True, kw_only=True):
    """On whose behalf requests are sent, and which go first when they must wait.

    Whoever may write these headers decides who is served first: the gateway must set them, or remove them from what
    clients send. Envoy must pass them on (`envoy-config --tenant-header`, `--priority-header`).

    Attributes:
        header: Header that names the tenant, such as `x-llm-d-inference-fairness-id`, which is read by its older name
            `x-gateway-inference-fairness-id` too. Tenants that wait are served
            equal shares, by tokens. Never one with credentials; a hash of the API key will do. Unset knows no tenants.
        priority_header: Header that holds the priority, such as `x-llm-d-inference-objective` (or
            `x-gateway-inference-objective`): one of `priorities` or a whole number from -100 to 100; higher
            goes first, and all else is 0. Unset knows no priorities.
        priorities: What names of priorities mean, such as `interactive: 10`.
    """

    header: HeaderName | None = None
    priority_header: HeaderName | None = None
    priorities: dict[Annotated[str, Meta(min_length=1, max_length=100)], Priority] = field(default_factory=dict)

    def problem(self) -> tuple[str, str] | None:
        """Return a field and what is wrong with it; None if all is well."""
        for name in ("header", "priority_header"):
            if getattr(self, name) in CREDENTIAL_HEADERS:
                return name, "it holds credentials, which are no names; let the gateway set one, such as a hash of them"
        if self.priorities and self.priority_header is None:
            return "priorities", "nothing names one of them; write the header that does in `priority_header`"
        return None


def longest_wait(message_timeout: float, max_message_timeout: float) -> float:
    """Return the seconds that a request may wait here before Envoy, with these timeouts, loses patience."""
    return max(SHARE_OF_TIMEOUT * message_timeout, max_message_timeout - MARGIN_S)
