"""What a platform team may choose about the objects of its gateway."""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

import msgspec

from ext_proc.bootstrap.options import NUMBERS, require_number
from ext_proc.core.errors import ConfigError

Profile: TypeAlias = Literal["istio", "envoy-gateway", "envoy-ai-gateway", "kgateway"]
FailureMode: TypeAlias = Literal["open", "closed"]

PROFILES: Final[tuple[Profile, ...]] = ("istio", "envoy-gateway", "envoy-ai-gateway", "kgateway")

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_PAIR = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?=[A-Za-z0-9._-]{0,63}")
_MAX_TARGET_PORTS = 8
_MAX_PORT = 65535
_MAX_REPLICAS = 9
_MAX_MODELS = 16


class ManifestOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The choices of one gateway; the defaults are the golden objects. Durations are in seconds, sizes in bytes.

    Attributes:
        namespace: where all objects live, the engines and kvpicker too.
        gateway: name of the Gateway, of its route and of the policies on it.
        gateway_class: its class; None takes the one that the gateway's own instructions use.
        pool: name of the InferencePool; with `envoy-gateway`, which has none, of the Service of the engines.
        selector: labels of the engines' pods, each `key=value`.
        target_ports: ports of the engines; with `envoy-gateway` one, of their Service.
        picker: name of kvpicker's Service and StatefulSet.
        picker_port: port of that Service.
        failure_mode: what becomes of requests while kvpicker does not answer, where the gateway leaves the choice.
        models: models that are routed to the pool, for `envoy-ai-gateway`, which routes by them.
        replicas: kvpicker processes, each of which is sent the access log; for `envoy-gateway`.
        message_timeout: how long the gateway waits for each answer of kvpicker; the same.
        body_limit: the longest request body that the gateway holds; the same.
        retries: attempts after the first, as long as nothing was sent; the same.
        tls_ca: object that holds, as `ca.crt`, the authorities that kvpicker's certificate must be of: for `istio` a
            Secret, for `envoy-gateway` a ConfigMap. None verifies nothing, which with `envoy-gateway` means no TLS.
        tls_name: name that kvpicker's certificate must be for.
        tls_client: Secret with `tls.crt` and `tls.key`, by which the gateway proves itself (mutual TLS).
    """

    namespace: str = "inference"
    gateway: str = "inference-gateway"
    gateway_class: str | None = None
    pool: str = "vllm"
    selector: tuple[str, ...] = ("app=vllm",)
    target_ports: tuple[int, ...] = (8000,)
    picker: str = "kvpicker"
    picker_port: int = 9002
    failure_mode: FailureMode = "open"
    models: tuple[str, ...] = ()
    replicas: int = 2
    message_timeout: float = 2.0
    body_limit: int = 4 * 1024 * 1024
    retries: int = 2
    tls_ca: str | None = None
    tls_name: str | None = None
    tls_client: str | None = None

    def __post_init__(self) -> None:
        """Refuse what no API server would take; raises ConfigError."""
        for name, pattern in (("namespace", _LABEL), ("picker", _LABEL), ("gateway", _SUBDOMAIN), ("pool", _SUBDOMAIN)):
            _require_name(getattr(self, name), pattern, name)
        for name in ("gateway_class", "tls_ca", "tls_name", "tls_client"):
            if getattr(self, name) is not None:
                _require_name(getattr(self, name), _SUBDOMAIN, name)
        self._check_engines()
        self._check_tls()
        if not 1 <= self.picker_port <= _MAX_PORT:
            raise ConfigError(f"{self.picker_port} is no port", path="picker_port")
        if not 1 <= self.replicas <= _MAX_REPLICAS:
            raise ConfigError(f"1 to {_MAX_REPLICAS} are possible, not {self.replicas}", path="replicas")
        for name in ("message_timeout", "body_limit", "retries"):
            require_number(getattr(self, name), *NUMBERS[name], name)

    def _check_engines(self) -> None:
        for pair in self.selector:
            if not _PAIR.fullmatch(pair):
                raise ConfigError(f"{pair!r} is no label; write key=value, as in app=vllm", path="selector")
        if not self.selector:
            raise ConfigError("name at least one label of the engines' pods", path="selector")
        if not 1 <= len(set(self.target_ports)) == len(self.target_ports) <= _MAX_TARGET_PORTS:
            raise ConfigError("one to eight different ports are possible", path="target_port")
        for port in self.target_ports:
            if not 1 <= port <= _MAX_PORT:
                raise ConfigError(f"{port} is no port", path="target_port")
        if len(self.models) > _MAX_MODELS or not all(self.models):
            raise ConfigError(f"at most {_MAX_MODELS} models, none of them empty", path="model")

    def _check_tls(self) -> None:
        for name in ("tls_name", "tls_client"):
            if self.tls_ca is None and getattr(self, name) is not None:
                raise ConfigError("nothing is verified; name the authority by `tls_ca`", path=name)
        if self.tls_ca is not None and self.tls_name is None:
            raise ConfigError("missing; write the name that kvpicker's certificate is for", path="tls_name")

    @property
    def match_labels(self) -> dict[str, str]:
        """The labels of the engines' pods."""
        return dict(pair.split("=", 1) for pair in self.selector)


def _require_name(text: str, pattern: re.Pattern[str], path: str) -> None:
    if not pattern.fullmatch(text):
        raise ConfigError(f"{text!r} is no name of an object; use small letters, digits and hyphens", path=path)
