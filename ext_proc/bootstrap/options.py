"""What an operator may choose about the Envoy in front of kvpicker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from ext_proc.bootstrap.versions import BODY_TWICE, BUILDS, NEWEST, OLDEST
from ext_proc.core.errors import ConfigError
from ext_proc.core.model import Operation
from ext_proc.core.prompts.routes import classify

FailureMode = Literal["open", "closed"]
Profile = Literal["lean", "buffered", "duplex"]

PROFILES: Final[Mapping[Profile, str]] = {
    "lean": "kvpicker sees requests, however long ones by their beginning",
    "buffered": "kvpicker sees whole requests; longer ones than `--body-limit` are refused with 413",
    "duplex": "all of requests and answers passes through kvpicker",
}
"""How Envoy and kvpicker talk, and what that means."""

MIB = 1024 * 1024
RETRIES = 2

_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")

_CREDENTIALS = frozenset({"cookie", "set-cookie", "proxy-authorization", "x-api-key", "api-key"})
"""Headers that carry credentials, beside all that begin with `authorization`."""


REPEATABLE = ("/v1/embeddings", "/v1/rerank", "/rerank", "/v1/score", "/score", "/tokenize")
"""Paths whose answers are the same however often they are asked for, and cheap."""

_REPEATABLE = frozenset({Operation.EMBEDDING, Operation.SCORE, Operation.COUNT_TOKENS, Operation.LOOKUP})

NUMBERS: Final[Mapping[str, tuple[float, float]]] = {
    "message_timeout": (0.001, 3600.0),
    "max_message_timeout": (0.0, 86_400.0),
    "body_limit": (1, 1024 * MIB),
    "retries": (0, 100),
}
"""Least and most of what is counted."""

_LABELS = (("tenant_header", "tenant"), ("priority_header", "priority"))


class EnvoyOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The choices of one Envoy; the defaults are the golden configuration. Durations are in seconds, sizes in bytes.

    Addresses are `ip:port` (IPv6 in brackets) or `unix:/path`; `processors` and `endpoints` may also be `name:port`.

    Attributes:
        profile: how Envoy and kvpicker talk, see `PROFILES`.
        envoy_version: version of the Envoy, such as `1.37`; what that lacks is left out.
        listen: where clients connect.
        admin: Envoy's admin interface; None switches it off. Port 0 takes a free one.
        processors: the kvpicker processes; Envoy shares exchanges among them and logs every request to each.
        endpoints_file: the EDS file that kvpicker writes; it must exist when Envoy starts.
        endpoints: engines fixed for Envoy's life, in place of `endpoints_file`; or names, such as that of a headless
            Service, all of whose addresses are engines and are looked up again every few seconds.
        failure_mode: what becomes of requests while no processor answers: `open` lets Envoy's own policy choose
            among the default pool, `closed` refuses them with 503.
        first_token: True to show the processor each streamed answer until its first piece, which tells when the
            first token came; until then the request shares the processor's fate. Not with the profile duplex, which
            tells it anyhow.
        message_timeout: how long Envoy waits for each answer of a processor.
        max_message_timeout: how long it waits if the processor asks it to, for a request that waits for its turn; 0
            lets it not be asked. The processors must be told (`envoy.max_message_timeout_s`).
        tenant_header: a header that says on whose behalf a request is sent; its value reaches the processors. What
            stands in front of this Envoy must set it, or remove it from what clients send: by both names, if the
            Endpoint Picker protocol has two for it.
        priority_header: the same for the priority of a request.
        gateway_headers: True to pass on all that the Endpoint Picker protocol has headers for, by either name: whose a
            request is, its priority or objective, another model, wanted times. Without it kvpicker hears nothing of
            them, since a client could write them too. For an Envoy behind what sets or removes them, or whose clients
            may say what goes first; the processors must be told to obey (`tenants`, `gateway`).
        engine_orders: True to let headers through that steer engines and the sidecars of llm-d, such as
            `x-override-priority` of SGLang and `x-prefiller-host-port`. For an Envoy behind what sets or removes them;
            from a client they could name any host to fetch a cache from.
        body_limit: the longest request body that Envoy holds. Longer ones go on whole, but the processors see only
            their beginning (up to twice as much) and no retry can send them again. Envoy knows one limit for both.
        retries: attempts after the first, as long as nothing was sent. None is 2, or 0 where any number harms, see
            `harm_of_retries`.
        repeatable: paths whose requests may also be sent again after an engine had them and closed the connection
            without an answer, exactly as clients spell them. What generates text is refused here: it would run twice.
        session_header: a header of clients that names their conversation, for session affinity; its value reaches the
            processors.
        session_cookie: the same as a cookie, used where the header is absent; of all cookies only this one's value
            reaches the processors.
        tls_ca: path, where Envoy runs, of a PEM file with authorities; kvpicker's certificate must be of one of them.
        tls_name: name or IP that kvpicker's certificate must be for.
        tls_client: folder, where Envoy runs, with `tls.crt` and `tls.key`, by which Envoy proves itself (mutual TLS).
        tls_unverified: True to speak TLS with whoever answers, as with a certificate that kvpicker made itself.
        tls_secrets: folder, where Envoy runs, with the files that `--write-secrets` writes. Envoy then reads changed
            certificates anew; without, it has those of its start until it ends.
        connect_timeout: for a connection to an engine.
        keep_idle: how long an idle connection to an engine is kept; below the engine's own limit (uvicorn: 5 s),
            or requests meet connections that the engine is closing.
        stream_idle_timeout: the longest silence in an exchange: queueing, prefill or the gap between two tokens.
        log_flush: how long access log entries may wait for company.
        log_buffer: entries are sent at the latest when they take so much.
        log_period: how often a running exchange is reported.
        log_name: name of the log in its stream.
    """

    profile: Profile = "lean"
    envoy_version: str = NEWEST
    listen: str = "0.0.0.0:8080"
    admin: str | None = "127.0.0.1:9901"
    processors: tuple[str, ...] = ("127.0.0.1:9002",)
    endpoints_file: str = "/run/kvpicker/eds.json"
    endpoints: tuple[str, ...] = ()
    failure_mode: FailureMode = "open"
    first_token: bool = False
    message_timeout: float = 2.0
    max_message_timeout: float = 300.0
    tenant_header: str | None = None
    priority_header: str | None = None
    gateway_headers: bool = False
    engine_orders: bool = False
    body_limit: int = 4 * MIB
    retries: int | None = None
    repeatable: tuple[str, ...] = REPEATABLE
    session_header: str | None = None
    session_cookie: str | None = None
    tls_ca: str | None = None
    tls_name: str | None = None
    tls_client: str | None = None
    tls_unverified: bool = False
    tls_secrets: str | None = None
    connect_timeout: float = 1.0
    keep_idle: float = 4.0
    stream_idle_timeout: float = 600.0
    log_flush: float = 0.2
    log_buffer: int = 65536
    log_period: float = 10.0
    log_name: str = "kvpicker"

    @property
    def attempts_after(self) -> int:
        """Attempts after the first, whether chosen or not."""
        if self.retries is not None:
            return self.retries
        return 0 if self.harm_of_retries else RETRIES

    @property
    def harm_of_retries(self) -> str:
        """Why a route should have no retry policy, which harms requests even if none is tried again; or nothing."""
        if self.profile == "duplex":
            return "in full duplex, Envoy sends a body twice to engines if trailers follow it and the route has one"
        if self.profile == "lean" and self.envoy_version in BODY_TWICE:
            return f"Envoy {self.envoy_version} sends a body over the limit twice if the route has one"
        return ""

    def __post_init__(self) -> None:
        """Refuse what Envoy could not run with; raises ConfigError."""
        self._require_known()
        for name, (least, most) in NUMBERS.items():
            require_number(getattr(self, name), least, most, name)
        if self.first_token and self.profile == "duplex":
            raise ConfigError("the profile duplex shows whole answers anyhow; leave it out", path="first_token")
        if not self.processors:
            raise ConfigError("name at least one kvpicker process", path="processors")
        if len(set(self.processors)) < len(self.processors):
            raise ConfigError("an address stands twice", path="processors")
        for name in ("session_header", "session_cookie", "tenant_header", "priority_header"):
            value = getattr(self, name)
            if value is not None and not _NAME.fullmatch(value):
                raise ConfigError(f"{value!r} is not a name; use letters, digits, hyphens and underscores", path=name)
        for name, meant in (("session_header", "conversation (for one cookie: session_cookie)"), *_LABELS):
            value = getattr(self, name)
            if value is not None and _is_credential(value):
                raise ConfigError(
                    f"`{value}` carries credentials, and kvpicker never gets those; name a header that only names the"
                    f" {meant}",
                    path=name,
                )
        for path in self.repeatable:
            _require_repeatable(path)
        self._require_tls()

    @property
    def is_encrypted(self) -> bool:
        """Whether Envoy speaks TLS to the processors."""
        return self.tls_unverified or self.tls_ca is not None

    def _require_tls(self) -> None:
        if self.tls_unverified and self.tls_ca is not None:
            raise ConfigError("who verifies by `tls_ca` does not go unverified; remove one", path="tls_unverified")
        if self.tls_ca is not None and self.tls_name is None:
            raise ConfigError(
                "missing; without a name any certificate of the authority would do, so write the one that"
                " kvpicker's carries, as in kvpicker.inference.svc",
                path="tls_name",
            )
        for name in ("tls_name", "tls_client", "tls_secrets"):
            if getattr(self, name) is not None and not self.is_encrypted:
                raise ConfigError("nothing is encrypted; write `tls_ca`, or `tls_unverified`", path=name)
        if self.is_encrypted and any(address.startswith("unix:") for address in self.processors):
            raise ConfigError("kvpicker does not encrypt what passes through Unix sockets", path="processors")
        if self.tls_secrets is not None and self.tls_ca is None and self.tls_client is None:
            raise ConfigError("there is nothing to keep there; write `tls_ca` or `tls_client`", path="tls_secrets")

    def _require_known(self) -> None:
        if self.profile not in PROFILES:
            raise ConfigError(f"one of {', '.join(PROFILES)} expected, not {self.profile!r}", path="profile")
        if self.envoy_version not in BUILDS:
            raise ConfigError(
                f"{OLDEST} to {NEWEST} expected, not {self.envoy_version!r}; a later Envoy takes what {NEWEST} takes",
                path="envoy_version",
            )
        if self.failure_mode not in {"open", "closed"}:
            raise ConfigError(f"`open` or `closed` expected, not {self.failure_mode!r}", path="failure_mode")


def require_number(value: float | None, least: float, most: float, path: str) -> None:
    """Refuse what Envoy could not count with; raises ConfigError. None is no number, and nobody's mistake."""
    if value is not None and not least <= value <= most:
        raise ConfigError(f"{value:g} is not between {least:g} and {most:.15g}", path=path)


def _require_repeatable(path: str) -> None:
    if not path.startswith("/") or "?" in path:
        raise ConfigError(f"{path!r} is no path; write it as in `/v1/embeddings`", path="repeatable")
    known = [found for method in ("POST", "GET") if (found := classify(method, path)) is not None]
    if not all(found.operation in _REPEATABLE for found in known):
        raise ConfigError(
            f"`{path}` generates, and what an engine may have begun is never generated twice; leave it out",
            path="repeatable",
        )


def _is_credential(header: str) -> bool:
    name = header.lower()
    return name in _CREDENTIALS or name.startswith("authorization")
